"""The XML of a program, and the checks of a file that do not depend on what it computes."""

from collections import Counter
from html import escape
from typing import Any, NoReturn
from xml.parsers import expat

from hocket.errors import ScheduleError
from hocket.schedule.collective import COLLECTIVES, Collective
from hocket.schedule.msccl.program import (
    KINDS,
    MAX_BLOCKS_PER_CHANNEL,
    MAX_COUNT,
    MAX_STEPS,
    Instruction,
    Program,
    Spot,
    ThreadBlock,
)

MAX_BYTES = 16 << 20
_MAX_RANKS = 1024
_MAX_STEPS_IN_ALL = 1 << 16  # what has run before each step is kept as bits
_MAX_CHUNKS = 1 << 16
_ANY_SIZE = (1 << 63) - 1  # bytes
_INSIDE = {"": "algo", "algo": "gpu", "gpu": "tb", "tb": "step", "step": ""}

SPELLINGS = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "reduce_scatter": "reducescatter",  # msccl-tools writes reduce_scatter, which later runtimes refuse
    "broadcast": "broadcast",
    "reduce": "reduce",
    "all_to_all": "alltoall",
}
"""The collectives that the format has, by our name."""
_NAMES = {spelling: name for name, spelling in SPELLINGS.items()} | {"reduce_scatter": "reduce_scatter"}


def parse(text: str, source: str) -> Program:
    """The program of a file's text; ScheduleError, naming line, gpu, tb and step, where it is none."""
    if len(text) > MAX_BYTES:
        raise ScheduleError(f"{source}: expected at most {MAX_BYTES >> 20} MiB of XML, found {len(text)} bytes")
    parser = _Parser(source)
    parser.run(text)
    return _checked(parser)


class _Parser:
    """Reads elements one by one. expat itself rather than ElementTree, which forgets lines."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.program: Program | None = None
        self.stack = [""]
        self.line = 1
        self.lines: dict[tuple[int, ...], int] = {}  # of each GPU, and of each of its thread blocks
        self.counts: dict[int, tuple[int, int]] = {}  # i_chunks and o_chunks of each GPU
        self.gpus: dict[int, dict[int, ThreadBlock]] = {}
        self.scratch: dict[int, int] = {}
        self.num_gpus = 0
        self.num_steps = 0

    def run(self, text: str) -> None:
        parser = expat.ParserCreate()
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.StartDoctypeDeclHandler = self._doctype
        self.parser = parser
        try:
            parser.Parse(text, True)
        except expat.ExpatError as error:
            raise ScheduleError(f"{self.source}:{error.lineno}: expected XML; found an error: {error}") from None

    def _doctype(self, *_: Any) -> None:
        self.line = self.parser.CurrentLineNumber
        self.fail("no document type: entities of a file are not expanded", "<!DOCTYPE>")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self.line = self.parser.CurrentLineNumber
        inside, self.attributes = self.stack[-1], attributes
        if name != _INSIDE[inside]:
            allowed = f"<{_INSIDE[inside]}>" if _INSIDE[inside] else "nothing"
            self.fail(f"{allowed} {f'in <{inside}>' if inside else 'as the root'}", f"<{name}>")
        self.stack.append(name)
        getattr(self, f"_{name}")()

    def _end(self, name: str) -> None:
        self.stack.pop()

    def fail(self, expected: str, found: str) -> NoReturn:
        """Raise a ScheduleError that says where the parser is."""
        parts = []
        if self.stack[-1] in ("gpu", "tb", "step"):
            parts.append(f"gpu {self.gpu}")
        if self.stack[-1] in ("tb", "step"):
            parts.append(f"tb {self.tb}")
        if self.stack[-1] == "step":
            parts.append(f"step {len(self.gpus[self.gpu][self.tb].steps)}")
        where = f"{', '.join(parts)}: " if parts else ""
        raise ScheduleError(f"{self.source}:{self.line}: {where}expected {expected}; found {found}")

    def number(self, name: str, low: int, high: int, default: int | None = None) -> int:
        """An attribute that is an integer from low to high."""
        text = self.attributes.get(name)
        if text is None and default is not None:
            return default
        try:
            value = int(text or "")
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            self.fail(f"{name}= from {low} to {high}", "none" if text is None else repr(text[:40]))
        return value

    def _algo(self) -> None:
        spelling = self.attributes.get("coll", "")
        if spelling not in _NAMES:
            why = " (custom: its result is told nowhere in the file)" if spelling == "custom" else ""
            self.fail(f"coll= one of {', '.join(sorted(_NAMES))}", f"{spelling[:40]!r}{why}")
        if self.attributes.get("proto") not in ("Simple", "LL", "LL128"):
            self.fail("proto= one of Simple, LL, LL128", repr(self.attributes.get("proto", "")[:40]))
        self.num_gpus = self.number("ngpus", 1, _MAX_RANKS)
        root = self.number("root", 0, self.num_gpus - 1, -1)
        self.program = Program(
            self.attributes.get("name", ""),
            _NAMES[spelling],
            bool(self.number("inplace", 0, 1)),
            self.number("nchunksperloop", 1, _MAX_CHUNKS),
            self.number("nchannels", 0, 256),
            [],
            [],
            None if root < 0 else root,
            self.source,
        )
        multiple = self.num_gpus if COLLECTIVES[_NAMES[spelling]].blocks != "one" else 1
        if self.program.num_chunks % multiple:
            self.fail(f"nchunksperloop= a multiple of ngpus={multiple}", str(self.program.num_chunks))

    def _gpu(self) -> None:
        assert self.program is not None
        self.stack[-1] = "algo"  # Until its number is known, an error concerns the algorithm.
        self.gpu = self.number("id", 0, self.num_gpus - 1)
        self.stack[-1] = "gpu"
        if self.gpu in self.gpus:
            self.fail("every gpu once", f"gpu {self.gpu} again")
        self.gpus[self.gpu] = {}
        self.lines[(self.gpu,)] = self.line
        limits = num_chunks(self.program, self.num_gpus)
        counts = []
        for name, limit in zip(("i_chunks", "o_chunks"), limits, strict=True):
            count = self.number(name, 0, _MAX_CHUNKS)
            if count not in (0, limit):
                chunks = f"nchunksperloop={self.program.num_chunks} of {self.program.collective}"
                self.fail(f"{name}={limit}, as {chunks} and ngpus={self.num_gpus} ask, or 0", str(count))
            counts.append(count)
        self.counts[self.gpu] = (counts[0], counts[1])
        self.scratch[self.gpu] = self.number("s_chunks", 0, _MAX_CHUNKS)

    def _tb(self) -> None:
        assert self.program is not None
        self.stack[-1] = "gpu"
        self.tb = self.number("id", 0, _MAX_BLOCKS_OF_GPU)
        self.stack[-1] = "tb"
        blocks = self.gpus[self.gpu]
        if self.tb in blocks:
            self.fail("every tb once", f"tb {self.tb} again")
        peers = [self.number(name, -1, self.num_gpus - 1) for name in ("send", "recv")]
        if self.gpu in peers:
            self.fail("peers other than its own gpu", f"send={peers[0]}, recv={peers[1]}")
        channel = self.number("chan", 0, max(self.program.num_channels - 1, 0))
        blocks[self.tb] = ThreadBlock(peers[0], peers[1], channel)
        self.lines[self.gpu, self.tb] = self.line

    def _step(self) -> None:
        block = self.gpus[self.gpu][self.tb]
        self.num_steps += 1
        if self.num_steps > _MAX_STEPS_IN_ALL:
            self.fail(f"at most {_MAX_STEPS_IN_ALL} steps in all", "more")
        name = self.attributes.get("type", "")
        if name not in KINDS:
            self.fail(f"type= one of {', '.join(KINDS)}", repr(name[:40]))
        if self.number("s", 0, MAX_STEPS - 1) != len(block.steps):
            self.fail(f"s={len(block.steps)}, as steps are numbered in their order", self.attributes["s"])
        kind = KINDS[name]
        for peer, needed, what in ((block.send, kind.sends, "send"), (block.recv, kind.receives, "recv")):
            if needed and peer < 0:
                self.fail(f"a thread block with {what}= a gpu, as {name} needs", f"{what}=-1")
        depends = (self.number("depid", -1, _MAX_BLOCKS_OF_GPU, -1), self.number("deps", -1, MAX_STEPS - 1, -1))
        src, dst = self._spot("src"), self._spot("dst")
        instruction = Instruction(
            name,
            src,
            dst,
            self.number("cnt", 0 if name == "nop" else 1, MAX_COUNT),
            depends if depends[0] >= 0 else None,
            bool(self.number("hasdep", 0, 1, 0)),
            self.line,
        )
        for buffer, chunk in {*instruction.reads(), *instruction.writes()}:
            limit = self.scratch[self.gpu] if buffer == "s" else self.counts[self.gpu]["io".index(buffer)]
            if not 0 <= chunk < limit:
                self.fail(f"a chunk of {buffer} below {limit}, its {buffer}_chunks", str(chunk))
        local = src[0] == dst[0] and kind.stores and (kind.reduces or name == "cpy")
        if local and 0 < abs(src[1] - dst[1]) < instruction.count:
            self.fail("srcoff and dstoff of chunks that do not overlap", f"{src[1]} and {dst[1]}")
        block.steps.append(instruction)

    def _spot(self, side: str) -> Spot:
        buffer = self.attributes.get(f"{side}buf", "")
        if buffer not in ("i", "o", "s"):
            self.fail(f"{side}buf= i, o or s", repr(buffer[:40]))
        return buffer, self.number(f"{side}off", -1, _MAX_CHUNKS)


_MAX_BLOCKS_OF_GPU = 1 << 13


def _checked(parser: _Parser) -> Program:
    """The program with its thread blocks, after what can only be said at the end of the file."""
    program, source = parser.program, parser.source
    assert program is not None
    if len(parser.gpus) != parser.num_gpus:
        missing = min(set(range(parser.num_gpus)).difference(parser.gpus))
        found = f"{len(parser.gpus)}: gpu {missing} is missing"
        raise ScheduleError(f"{source}: expected ngpus={parser.num_gpus} elements <gpu>; found {found}")
    for gpu in range(parser.num_gpus):
        blocks = parser.gpus[gpu]
        at = f"{source}:{parser.lines[(gpu,)]}: gpu {gpu}"
        if sorted(blocks) != list(range(len(blocks))):
            raise ScheduleError(f"{at}: expected thread blocks numbered from 0; found {sorted(blocks)}")
        for what in ("send", "recv"):
            ends = Counter((getattr(block, what), block.channel) for block in blocks.values())
            for tb, block in blocks.items():
                end = (getattr(block, what), block.channel)
                if end[0] >= 0 and ends[end] > 1:
                    line = parser.lines[gpu, tb]
                    at_block = f"{source}:{line}: gpu {gpu}, tb {tb}"
                    expected = f"one thread block with {what}={end[0]} on channel {end[1]}"
                    raise ScheduleError(f"{at_block}: expected {expected}; found {ends[end]}")
        channel, most = Counter(block.channel for block in blocks.values()).most_common(1)[0] if blocks else (0, 0)
        if most > 2 * MAX_BLOCKS_PER_CHANNEL:
            limit = 2 * MAX_BLOCKS_PER_CHANNEL
            raise ScheduleError(f"{at}: expected at most {limit} thread blocks on channel {channel}; found {most}")
        program.blocks.append([blocks[tb] for tb in range(len(blocks))])
        program.num_scratch.append(parser.scratch[gpu])
    return program


def num_chunks(program: Program, num_ranks: int) -> tuple[int, int]:
    """How many chunks the input and the output of a GPU have where it has one at all."""
    kind: Collective = COLLECTIVES[program.collective]
    return tuple(  # type: ignore[return-value]
        program.num_chunks // num_ranks if extent == "own" else program.num_chunks
        for extent in (kind.input, kind.output)
    )


def format_program(program: Program) -> str:
    """Its XML, in the few forms that the runtimes' own parsers know: no declaration, one space between attributes."""
    kind = COLLECTIVES[program.collective]
    root = f' root="{program.root}"' if kind.rooted else ""
    lines = [
        f'<algo name="{escape(program.name)}" proto="Simple" nchannels="{program.num_channels}"'
        f' nchunksperloop="{program.num_chunks}" ngpus="{program.num_ranks}" coll="{SPELLINGS[program.collective]}"'
        f' inplace="{int(program.in_place)}" outofplace="{int(not program.in_place)}"'
        f' minBytes="0" maxBytes="{_ANY_SIZE}"{root}>'
    ]
    limits = num_chunks(program, program.num_ranks)
    for gpu, blocks in enumerate(program.blocks):
        used = {spot[0] for block in blocks for one in block.steps for spot in (*one.reads(), *one.writes())}
        chunks = [
            limit if buffer in used or not program.in_place else 0 for buffer, limit in zip("io", limits, strict=True)
        ]
        sizes = f'i_chunks="{chunks[0]}" o_chunks="{chunks[1]}" s_chunks="{program.num_scratch[gpu]}"'
        lines.append(f'  <gpu id="{gpu}" {sizes}>')
        for tb, block in enumerate(blocks):
            lines.append(f'    <tb id="{tb}" send="{block.send}" recv="{block.recv}" chan="{block.channel}">')
            for step, one in enumerate(block.steps):
                depid, deps = one.depends or (-1, -1)
                lines.append(
                    f'      <step s="{step}" type="{one.name}" srcbuf="{one.src[0]}" srcoff="{one.src[1]}"'
                    f' dstbuf="{one.dst[0]}" dstoff="{one.dst[1]}" cnt="{one.count}"'
                    f' depid="{depid}" deps="{deps}" hasdep="{int(one.awaited)}"/>'
                )
            lines.append("    </tb>")
        lines.append("  </gpu>")
    lines.append("</algo>")
    return "\n".join(lines) + "\n"
