"""A short form of MSCCL++ plans, with the fields and the order of fields that MSCCL++'s own tools write."""

import re
from typing import Any

from hocket.schedule import Schedule, reference
from tests.schedule.msccl_files import numbers
from tests.schedule.plan_machine import NUM_ELEMENTS, PlanMachine

# A GPU is a list of blocks. A block is a list of channels, such as "memory 1" or "port 2", and its ops, such as
# "signal 0", "re i0*2 s0*2 > i0*2", "put i0 > 1:s0" (into scratch of GPU 1) or "put@port 0 i0 > 1:s0" (on channel 0).
Block = tuple[list[str], list[str]]


def execution_plan(coll: str, chunks: tuple[int, int, int], gpus: list[list[Block]], **more: Any) -> dict[str, Any]:
    """chunks: input_chunks, output_chunks, scratch_chunks."""
    plan = {
        "name": "test",
        "collective": coll,
        "protocol": "Simple",
        "inplace": True,
        "reuse_resources": False,
        "gpus": [_gpu(number, chunks, blocks) for number, blocks in enumerate(gpus)],
        "num_threads_per_block": 1024,
        "use_double_scratch_buffer": False,
        "buffer_alignment": 16,
        "min_message_size": 0,
        "max_message_size": 18446744073709551615,
    }
    return plan | more


def _gpu(number: int, chunks: tuple[int, int, int], blocks: list[Block]) -> dict[str, Any]:
    peers: dict[str, list[int]] = {}
    remote: list[dict[str, Any]] = []
    threadblocks = []
    num_semaphores = 0
    for tb, (channels, ops) in enumerate(blocks):
        ids: dict[str, list[int]] = {}
        for one in channels:
            kind, peer = one.split()
            ids.setdefault(kind, []).append(len(peers.setdefault(kind, [])))
            peers[kind].append(int(peer))
        refs: dict[str, list[int]] = {}
        made = [_op(one, remote, refs) for one in ops]
        num_semaphores = max([num_semaphores, *(1 + i for op in made for i in op.get("semaphore_ids", []))])
        threadblocks.append(
            {
                "id": tb,
                "ops": made,
                "channels": [{"channel_type": kind, "channel_ids": of_kind} for kind, of_kind in ids.items()],
                "remote_buffer_refs": [
                    {"access_channel_type": kind, "remote_buffer_ids": of_kind} for kind, of_kind in refs.items()
                ],
            }
        )
    return {
        "id": number,
        "input_chunks": chunks[0],
        "output_chunks": chunks[1],
        "scratch_chunks": chunks[2],
        "threadblocks": threadblocks,
        "channels": [{"channel_type": kind, "connected_to": of_kind} for kind, of_kind in peers.items()],
        "remote_buffers": remote,
        "semaphores": [{"init_value": 0}] * num_semaphores,
    }


def _op(text: str, remote: list[dict[str, Any]], refs: dict[str, list[int]]) -> dict[str, Any]:
    head, *words = text.split()
    name, _, kind = head.partition("@")
    kind = kind or "memory"
    op: dict[str, Any] = {"name": name}
    places: list[list[dict[str, Any]]] = [[], []]
    ids = [int(word) for word in words if word.isdigit()]
    for i, word in enumerate(words):
        if match := re.fullmatch(r"(?:(\d+):)?([ios])(\d+)(?:\*(\d+))?", word):
            where: dict[str, Any] = {"type": match[2]}
            if match[1]:
                buffer = {"rank": int(match[1]), "type": match[2], "access_channel_types": [kind]}
                if buffer not in remote:
                    remote.append(buffer)
                of_block = refs.setdefault(kind, [])
                if remote.index(buffer) not in of_block:
                    of_block.append(remote.index(buffer))
                where = {"buffer_id": of_block.index(remote.index(buffer))}
            places[">" in words[:i]].append(where | {"index": int(match[3]), "size": int(match[4] or 1)})
    if places[0]:
        op |= {"src_buff": places[0], "dst_buff": places[1]}
    if name == "barrier":
        op |= {"barrier_id": ids[0], "num_threadblocks": ids[1]}
    elif name.startswith("sem_"):
        op["semaphore_ids"] = ids
    else:
        op |= {"channel_ids": ids} if ids else {}
        op |= {"channel_type": kind} if ids or any("buffer_id" in one for side in places for one in side) else {}
    if name in ("re", "res", "rre", "rres"):
        op["reduce_op"] = "sum"
    for word in words:
        if word.startswith("tbg="):
            op["tbg_info"] = dict(zip(("tb_id", "tbg_size"), map(int, word[4:].split("/")), strict=True))
    return op


def expected(schedule: Schedule, num_calls: int) -> list[list[list[list[int]]]]:
    """The chunks of each output, with each element, of calls whose input `loaded` gives."""
    found = []
    for call in range(num_calls):
        elements = [
            reference.run(schedule, numbers(schedule, call * NUM_ELEMENTS + i), "sum") for i in range(NUM_ELEMENTS)
        ]
        found.append(
            [[list(map(int, chunk)) for chunk in zip(*of_rank, strict=True)] for of_rank in zip(*elements, strict=True)]
        )
    return found


def run_plan(plan: dict[str, Any], schedule: Schedule, seed: int, num_calls: int = 2) -> list[list[list[list[int]]]]:
    """The same, as the thread blocks of a plan compute it."""
    inputs = {
        (call, i): numbers(schedule, call * NUM_ELEMENTS + i) for call in range(num_calls) for i in range(NUM_ELEMENTS)
    }

    def load(call: int, gpu: int, element: int) -> list[int]:
        given = inputs[min(call, num_calls - 1), element][gpu]
        return [] if given is None else given.tolist()

    return PlanMachine(plan, seed, load).run(num_calls)
