"""The classic programs give on Hocket what they give on Gloo, line by line."""

import contextlib
import io
import os
import re
import runpy
import socket
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from tests.torch_backend.ranks import start

EXAMPLES = Path(__file__).parents[2] / "examples" / "textbook"


def play(rank: int, size: int, store: str, name: str, backend: str) -> str:
    """Returns what a rank of torchrun prints, without the seconds that torchrun itself takes."""
    import torch.distributed as dist

    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    sys.argv = [name, backend]
    printed, made = io.StringIO(), dist.init_process_group

    def made_over_a_file(backend: str) -> None:  # ports may be in use
        made(backend, store=dist.FileStore(store, size), rank=rank, world_size=size)

    dist.init_process_group = made_over_a_file
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)  # of what PyTorch deprecates
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return printed.getvalue()


@pytest.mark.parametrize(
    ("name", "num_ranks", "words"),
    [
        ("collectives.py", 4, "reduce_scatter, then all_gather, is all_reduce: True"),
        ("mnist_sgd.py", 2, "held-out accuracy 0.9"),
        ("data_parallel.py", 2, "2 ranks train as one process does: True"),
        ("tensor_parallel.py", 4, "gradients of all layers on 4 ranks are those of one process: True"),
        ("pipeline_parallel.py", 4, "gradients of all 4 stages are those of one process: True"),
    ],
)
def test_textbook_program(name: str, num_ranks: int, words: str, tmp_path: Path) -> None:
    printed = [
        start(play, num_ranks, num_ranks, str(tmp_path / backend), name, backend) for backend in ("hocket", "gloo")
    ]
    assert words in printed[0][0]
    assert printed[0] == printed[1]


def test_point_to_point() -> None:
    printed = []
    for backend in ("hocket", "gloo"):
        with socket.create_server(("127.0.0.1", 0)) as found:
            port = found.getsockname()[1]
        command = [sys.executable, str(EXAMPLES / "p2p.py"), backend]
        environment = os.environ | {"MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        # Line ends are ignored: two processes write at the same time.
        printed.append(sorted(re.findall(r"(?:non-)?blocking: rank \d has [0-9.]+", done.stdout)))
    assert printed[0] == printed[1]
    assert printed[0] == sorted(
        f"{kind}: rank {rank} has 1.0" for kind in ("blocking", "non-blocking") for rank in (0, 1)
    )
