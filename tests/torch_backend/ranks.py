"""Ranks of torch.distributed for tests: children of a fork server that has imported PyTorch once."""

import faulthandler
import functools
import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

SECONDS = 60  # timeout of every operation, unless a test has its own
HANGING = 100  # seconds after which a rank that no timeout ended shows its stacks, and ends


@functools.cache
def _server() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed", "hocket.torch_backend.process_group"])
    return context


def run(main: Callable[..., Any], num_ranks: int, *arguments: Any) -> list[Any]:
    """Calls main(*arguments) on every rank of a new default group of Hocket, and returns what they returned.

    AssertionError if one fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        return start(_in_group, num_ranks, num_ranks, f"{folder}/store", main, arguments)


def start(main: Callable[..., Any], num_ranks: int, *arguments: Any) -> list[Any]:
    """Calls main(rank, *arguments) in `size` processes, and returns what they returned.

    AssertionError if one fails.
    """
    pipes, processes = [], []
    for rank in range(num_ranks):
        here, there = _server().Pipe()
        process = _server().Process(target=_answer, args=(there, main, (rank, *arguments)))
        process.start()
        there.close()
        pipes.append(here)
        processes.append(process)
    results = [_received(pipe) for pipe in pipes]
    for process in processes:
        process.join()
    failures = [f"rank {rank}:\n{text}" for rank, (good, text) in enumerate(results) if not good]
    assert not failures, "\n".join(failures)
    codes = [process.exitcode for process in processes]
    assert codes == [0] * num_ranks, f"exit codes {codes}"
    return [result for _, result in results]


def _received(pipe: Any) -> tuple[bool, Any]:
    try:
        found: tuple[bool, Any] = pipe.recv()
    except EOFError:
        return False, "it ended without an answer"
    return found


def _in_group(rank: int, size: int, store: str, main: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    import torch.distributed as dist

    dist.init_process_group(
        "hocket", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=SECONDS)
    )
    result = main(*arguments)
    if dist.is_initialized():
        dist.destroy_process_group()
    return result


def _answer(pipe: Any, main: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    import torch

    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(HANGING, exit=True)
    try:
        answer = True, main(*arguments)
    except BaseException:
        answer = False, traceback.format_exc()
    pipe.send(answer)
    faulthandler.cancel_dump_traceback_later()
    if not answer[0]:
        os._exit(1)  # like a program that fails: without waiting for its peers


def given_to(rank: int, size: int, store: Any, seconds: float) -> Any:
    """What torch.distributed passes to a rank of a default group."""
    return SimpleNamespace(
        store=store, group_rank=rank, group_size=size, timeout=timedelta(seconds=seconds), global_ranks_in_group=[]
    )


def descriptors() -> list[str]:
    """Returns the files of this process's open descriptors."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found.append(str(entry.readlink()))
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
    return found
