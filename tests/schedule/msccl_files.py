"""A short form of MSCCL files, common algorithms in that form, and what their thread blocks compute."""

import random
from collections import defaultdict

import numpy as np

from hocket.schedule import Schedule, reference
from hocket.schedule.msccl.contents import Cells
from hocket.schedule.msccl.program import span
from hocket.schedule.msccl.text import parse

# A GPU is a list of blocks (send, recv, chan, *steps), a step like "rrc i0 s2 *2 <1.3"


def step(number: int, text: str, awaited: bool) -> str:
    name, *words = text.split()
    places = [word for word in words if word[0] in "ios"]
    count = next((word[1:] for word in words if word[0] == "*"), "0" if name == "nop" else "1")
    depends = next((word[1:].split(".") for word in words if word[0] == "<"), ["-1", "-1"])
    src, dst = (places[0], places[-1]) if places else ("i-1", "o-1")
    return (
        f'<step s="{number}" type="{name}" srcbuf="{src[0]}" srcoff="{src[1:]}" dstbuf="{dst[0]}" dstoff="{dst[1:]}"'
        f' cnt="{count}" depid="{depends[0]}" deps="{depends[1]}" hasdep="{int(awaited)}"/>\n'
    )


def algo(coll: str, sizes: tuple[int, int, int, int], gpus: list, inplace: int = 1, more: str = "") -> str:
    """sizes: nchunksperloop, i_chunks, o_chunks, s_chunks."""
    channels = 1 + max((block[2] for blocks in gpus for block in blocks), default=0)
    text = (
        f'<algo name="test" proto="Simple" nchannels="{channels}" nchunksperloop="{sizes[0]}" ngpus="{len(gpus)}"'
        f' coll="{coll}" inplace="{inplace}" outofplace="0" minBytes="0" maxBytes="0"{more}>\n'
    )
    for gpu, blocks in enumerate(gpus):
        text += f'<gpu id="{gpu}" i_chunks="{sizes[1]}" o_chunks="{sizes[2]}" s_chunks="{sizes[3]}">\n'
        told = {word[1:] for block in blocks for one in block[3:] for word in one.split() if word[0] == "<"}
        for tb, (send, recv, channel, *steps) in enumerate(blocks):
            text += f'<tb id="{tb}" send="{send}" recv="{recv}" chan="{channel}">\n'
            text += "".join(step(n, one, f"{tb}.{n}" in told) for n, one in enumerate(steps)) + "</tb>\n"
        text += "</gpu>\n"
    return text + "</algo>\n"


PAIR = algo("allreduce", (1, 1, 0, 0), [[(1, 1, 0, "s i0", "rrc i0")], [(0, 0, 0, "s i0", "rrc i0")]])
APART = algo(
    "allreduce",
    (1, 1, 0, 0),
    [[(-1, 1, 0, "rrc i0 <1.0"), (1, -1, 0, "s i0")], [(-1, 0, 0, "rrc i0 <1.0"), (0, -1, 0, "s i0")]],
)


def ring(p: int) -> str:
    """The ring as msccl-tools gives it: gpu 0 of 4 does s i0, rrs i3, rrs i2, rrcs i1, rcs i0, rcs i3, r i2."""
    gpus = []
    for gpu in range(p):
        chunk = [f"i{(gpu - i) % p}" for i in range(2 * p)]
        middle = [f"rrs {one}" for one in chunk[1 : p - 1]] + [f"rrcs {chunk[p - 1]}"]
        last = [f"rcs {one}" for one in chunk[p : 2 * p - 2]] + [f"r {chunk[2 * p - 2]}"]
        gpus.append([((gpu + 1) % p, (gpu - 1) % p, 0, f"s {chunk[0]}", *middle, *last)])
    return algo("allreduce", (p, p, 0, 0), gpus)


def all_pairs(p: int) -> str:
    """Each GPU folds one chunk from all others, in an order that dependencies fix, and sends it back to all."""
    gpus = []
    for gpu in range(p):
        others = [(gpu + i) % p for i in range(1, p)]
        folds = [(-1, peer, 0, f"rrc i{gpu}" + (f" <{i - 1}.0" if i else "")) for i, peer in enumerate(others)]
        sends = [(peer, -1, 0, f"s i{peer}") for peer in others]
        backs = [(peer, -1, 1, f"s i{gpu} <{p - 2}.0") for peer in others]
        stored = [(-1, peer, 1, f"r i{peer} <{p - 1 + i}.0") for i, peer in enumerate(others)]
        gpus.append([*folds, *sends, *backs, *stored])
    return algo("allreduce", (p, p, 0, 0), gpus)


def all_pairs_in_scratch(p: int) -> str:
    """The same through scratch, with cnt, a local block that folds, and a nop for each thing that it waits for."""
    gpus = []
    for gpu in range(p):
        others = [(gpu + i) % p for i in range(1, p)]
        waits = [f"nop <{i + 1}.1" for i in range(1, p - 1)]
        folds = [f"re s{2 * i + k} i{2 * gpu + k}" for k in (0, 1) for i in range(p - 1)]
        local = [*waits, f"{folds[0]} <1.1", *folds[1:]]
        exchanges = [
            (
                peer,
                peer,
                0,
                f"s i{2 * peer} *2",
                f"r s{2 * i} *2",
                f"s i{2 * gpu} *2 <0.{len(local) - 1}",
                f"r i{2 * peer} *2",
            )
            for i, peer in enumerate(others)
        ]
        gpus.append([(-1, -1, 0, *local), *exchanges])
    return algo("allreduce", (2 * p, 2 * p, 0, 2 * (p - 1)), gpus)


def numbers(schedule: Schedule, seed: int = 1) -> list:
    """Returns an input for each rank that has one: a whole number per chunk, so that sums are exact in any order."""
    kind, p, k = schedule.kind, schedule.num_ranks, schedule.chunks_per_block
    sizes = [k * len(kind.input_blocks(rank, p, schedule.root)) for rank in range(p)]
    generator = np.random.default_rng(seed)
    return [generator.integers(0, 1 << 40, size) if size else None for size in sizes]


def results(schedule: Schedule) -> list[list[int]]:
    """Returns the outputs of the schedule, whatever it means."""
    return [[] if one is None else one.tolist() for one in reference.run(schedule, numbers(schedule), "sum")]


def run_file(text: str, schedule: Schedule, seed: int = 0) -> list[list[int]]:
    """Returns the outputs of a file's thread blocks, whose instructions run in a random order."""
    program = parse(text, "test")
    cells, kind, p, choice = Cells(program), schedule.kind, program.num_ranks, random.Random(seed)
    memory: dict[object, int] = {}
    for gpu, values in enumerate(numbers(schedule)):
        buffer = "o" if program.in_place and kind.name in ("all_gather", "broadcast") else "i"
        first = gpu * schedule.chunks_per_block if buffer == "o" and kind.name == "all_gather" else 0
        for i, value in enumerate([] if values is None else values.tolist()):
            memory[cells.of(gpu, (buffer, first + i))] = value
    channels: dict[object, list[list[int]]] = defaultdict(list)
    blocks = {(gpu, tb): block for gpu, of_gpu in enumerate(program.blocks) for tb, block in enumerate(of_gpu)}
    done = dict.fromkeys(blocks, 0)
    while any(done[key] < len(block.steps) for key, block in blocks.items()):
        ready = []
        for (gpu, tb), block in blocks.items():
            if done[gpu, tb] < len(block.steps):
                one = block.steps[done[gpu, tb]]
                waits = one.depends is not None and done[gpu, one.depends[0]] <= one.depends[1]
                if not waits and (not one.kind.receives or channels[block.recv, gpu, block.channel]):
                    ready.append((gpu, tb))
        gpu, tb = choice.choice(ready)
        block, done[gpu, tb] = blocks[gpu, tb], done[gpu, tb] + 1
        one = block.steps[done[gpu, tb] - 1]
        src, dst = ([cells.of(gpu, place) for place in span(first, one.count)] for first in (one.src, one.dst))
        values = channels[block.recv, gpu, block.channel].pop(0) if one.kind.receives else []
        if one.name in ("s", "cpy"):
            values = [memory[cell] for cell in src]
        elif one.kind.reduces:
            values = [memory[cell] + other for cell, other in zip(src, values or [memory[c] for c in dst], strict=True)]
        if one.kind.stores:
            memory.update(zip(dst, values, strict=True))
        if one.kind.sends:
            channels[gpu, block.send, block.channel].append(values)
    buffer = "i" if program.in_place and kind.output == "own" else "o"
    sizes = [schedule.chunks_per_block * len(kind.output_blocks(rank, p, schedule.root)) for rank in range(p)]
    firsts = [rank * schedule.chunks_per_block if buffer == "i" else 0 for rank in range(p)]
    return [
        [memory[cells.of(rank, (buffer, first + i))] for i in range(size)]
        for rank, (size, first) in enumerate(zip(sizes, firsts, strict=True))
    ]


def types(text: str) -> list[list[str]]:
    """Returns the instructions of each thread block, such as "rrc i0"."""
    program = parse(text, "test")
    return [
        [f"{one.name} {''.join(map(str, one.src if one.name != 'r' else one.dst))}" for one in block.steps]
        for blocks in program.blocks
        for block in blocks
    ]
