"""Writes docs/from-row-to-plan.md: one row of a ring at every stage, from the algorithm to the message.

python docs/pictures/from_row_to_plan.py
"""

import json
import linecache
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import hocket
from hocket.algorithms import ALGORITHMS
from hocket.schedule import COLUMNS, Buffer, Builder, Plan, Schedule, Step, lower_all
from hocket.schedule.lowering.dependencies import REMOTE, SPACE_NAMES
from hocket.schedule.lowering.forms import (
    COMPLETING,
    KEEPS,
    KEEPS_RAW,
    OPENS,
    RAW,
    RECEIVES,
    SENDS,
    Form,
    Forms,
    RankTransfers,
)
from hocket.schedule.lowering.lower import _FormLowering
from hocket.schedule.lowering.plan import Outline, OutlineWriter
from hocket.schedule.lowering.transfers import Transfers, transfers
from hocket.schedule.places import places_of
from hocket.schedule.proof.joint import JointPlans
from hocket.schedule.proof.waits import match_messages

PAGE = Path(__file__).parents[1] / "from-row-to-plan.md"
NUM_RANKS, STEP, SENDER, RECEIVER = 5, 1, 1, 2  # five, because the codes of spots and locations use four
ELEMENTS = 400 << 10  # float32: a chunk has 320 KiB and travels in three pieces
MARKS = {
    "sends": SENDS,
    "receives": RECEIVES,
    "opens": OPENS,
    "keeps": KEEPS,
    "raw": RAW,
    "keeps_raw": KEEPS_RAW,
    "completing": COMPLETING,
}
TEXT = """\
# From a row to a plan

This page follows one row of a schedule from the line that writes it to the message that carries it. A program writes
this page with Hocket's own functions, so every number is real. Do not edit the page: change
`docs/pictures/from_row_to_plan.py` and run `make docs-pictures`.

The schedule is the ring all_reduce of {num_ranks} ranks. In step {step}, rank {sender} sends chunk {chunk} to rank
{receiver}, which adds it to its own chunk {chunk}. In step {previous}, rank {sender} added what rank {first} sent.
Files are below `src/hocket/`. The [glossary](../ARCHITECTURE.md#glossary) explains the words.

{stages}
## 1. The line of the algorithm

{code}
`p` is {num_ranks}, and `rank` is an array of all ranks, so one call writes {num_ranks} rows.

## 2. The row

`schedule.repeat` runs the loop, but it keeps only repetition 0, as a *repeat*: one step, {times} times. Each repetition
moves the chunks on by {shift}, modulo {num_chunks}. This is the row in repetition 0, and shifted, in repetition
{step}:

{rows}
The row says what rank {receiver} holds after the step. It does not say where the chunk lies in memory.

## 3. The fold

The proof numbers every chunk of every buffer of every rank. This number is the *place*: {width} * rank + chunk, as
this schedule has only one buffer,
`data`. A step
becomes *folds*: a fold reads places in order and writes one. A row that reduces reads the old content first, so this
fold reads two:

{folds}
Law 2 follows these contributions to the end of the schedule. Each one must arrive exactly once.

## 4. The transfer

Lowering starts again from the rows. A *transfer* is a row that moves one chunk, with what an executor must know of it.
`source` and `target` are *spots*: a spot is a chunk of a buffer within one rank, 4 * chunk + buffer (`data` is buffer
0). `opens` marks the first row of a fold, `keeps` says
that the old content is the first operand, and `keeps_raw` that no step has changed it yet. `completes` is False because
one contribution is missing.

{transfer}
## 5. The form

Rank {sender} and rank {receiver} lower the transfer independently of each other. Most ranks do the same with other
numbers. So the *form* of a rank counts its spots, peers and locations from 0, in the order in which its transfers name
them. The transfer is one row in each of the two forms. The row
of the sender has no target and the row of the receiver has no source, which -1 says:

{form_rows}
A form also says where each spot lies: in the input until it is written, and from then on at its *home*, which is in
the output. A *location* is 4 * number + space (`input` is space 0, `output` is space 1); one counter numbers both
spaces:

{locations}
The {num_ranks} ranks have {num_forms} forms: {alike}. The rows of a step are sorted by sender, so rank 0 sends before
it receives, and every other rank receives first. Each form is lowered once.

## 6. The outline

Lowering turns a form into an *outline*: a plan without names. The row becomes a send in one outline and a fold in the
other. A source is [peer, space, index, raw], and a destination is [peer, space, index]. A peer of -1 is the rank
itself. Space {remote} is a channel: a message to the peer or from it. Until section 7, the row of the form stands
for the index of the message and for the chunk.

{outlines}
The send reads the output, because the fold of step {previous} wrote there. It depends on that fold. The other fold
reads the input of rank {receiver} and the message, and writes the output. So no copy is needed.

## 7. The plan

The *plan* of a rank is the outline with the names of this rank: its peers, chunks and memory. The index of the message
is now {order}: the row is number {order} of step {step}, counted from 0. Both ends know this number, so a message
carries no address. The C++ core
is given exactly these arrays.

{plans}
## 8. The joint plan

Law 3 joins the plans of all ranks. It numbers all instructions from 0 to {last}, and all messages in the same way. The
row is message {message} of this count: instruction {send} sends it, and instruction {fold} receives it, after message
{before} of the same channel. The table calls a message by its index of section 7, and shows only the waits among these
three:

{joint}
Law 3 looks for a cycle of waits, and for two accesses of one location that nothing orders. This schedule has neither.

## 9. The message

Now the row runs. Each rank calls `all_reduce` with {elements:,} float32 numbers, so a chunk has {chunk_kib} KiB. The
executor cuts it into *pieces*. A channel carries the pieces in the order (piece + step, step, index). So piece 0 of
step 1 does not wait for the last piece of step 0: chunks are pipelined, although the schedule knows no pieces. A
trace of this call shows that rank {sender} sent to rank {receiver}, in this order:

{pieces}
Rank {receiver} adds each piece to its own as it arrives.
"""

Cells = Iterable[Any]


def file_of(thing: Any) -> str:
    """The file that defines a class or a function, below src/hocket/."""
    return below_package(str(sys.modules[thing.__module__].__file__))


def below_package(file: str) -> str:
    """A file of the package, below src/hocket/."""
    return Path(file).relative_to(Path(hocket.__file__).parent).as_posix()


def listing(head: Cells, rows: Iterable[Cells]) -> str:
    """A table in plain text, its columns as wide as they need."""
    lines = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
    return "```text\n" + "".join(f"{line.rstrip()}\n" for line in padded) + "```\n"


def name_ranks(ranks: Sequence[int]) -> str:
    """The ranks in words."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def stages(schedule: Schedule) -> str:
    """What each stage is for, and where it is made."""
    rows = [
        ("algorithm line", "says what all ranks send", below_package(schedule.site(STEP).rpartition(":")[0])),
        ("row", "what one rank sends to another in a step", f"{file_of(Builder)}`, `{file_of(Step)}"),
        ("fold", "what the proof follows", file_of(places_of)),
        ("transfer", "a row with what an executor must know", file_of(transfers)),
        ("form", "the transfers of one rank without names", file_of(Forms)),
        ("outline", "instructions without names", file_of(lower_all)),
        ("plan", "instructions of one rank", file_of(Plan)),
        ("joint plan", "the plans of all ranks, for law 3", f"{file_of(JointPlans)}`, `{file_of(match_messages)}"),
        ("message", "what the channel carries", "csrc/executor/sends.cpp"),
    ]
    lines = (f"|{number}|{name}|{what}|`{file}`|\n" for number, (name, what, file) in enumerate(rows, 1))
    return "| |stage|what it is|file|\n|---|---|---|---|\n" + "".join(lines)


def code_of(schedule: Schedule) -> str:
    """The lines of the program that wrote the step."""
    file, _, line = schedule.site(STEP).rpartition(":")
    code = "".join(linecache.getline(file, int(line) + i).removeprefix("    ") for i in (0, 1))
    return f"```python\n{code}```\n"


def cells_of_row(schedule: Schedule, number: int) -> dict[str, Any]:
    """The row in the step of this number, by column."""
    step = list(schedule.steps())[number]
    [row] = np.flatnonzero((step.src == SENDER) & (step.dst == RECEIVER))
    found = {name: getattr(step, name)[row] for name in COLUMNS}
    return found | {name: Buffer(found[name]).name.lower() for name in ("src_buffer", "dst_buffer")}


def cells_of_fold(schedule: Schedule) -> list[Cells]:
    """The places that the row's fold reads and writes, and whose contributions they hold."""
    places = places_of(schedule)
    held = {place: {rank} for place, rank in np.stack(places.inputs()[:2], axis=1).tolist()}
    target = RECEIVER * places.width + int(cells_of_row(schedule, STEP)["dst_chunk"])
    for fold in places.folds():
        before = dict(held)
        for group, place in enumerate(fold.writes.tolist()):
            begin, count = fold.pattern.starts[group], fold.pattern.counts[group]
            reads = fold.reads[begin : begin + count].tolist()
            held[place] = set().union(*(before[read] for read in reads))
            if fold.number == STEP and place == target:
                found = [("reads", read, before[read]) for read in reads] + [("writes", place, held[place])]
                return [(verb, at, *divmod(at, places.width), sorted(ranks)) for verb, at, ranks in found]
    raise ValueError("no fold writes the place of the row")


def cells_of_transfer(rows: Transfers) -> dict[str, Any]:
    """The transfer, by column."""
    [row] = np.flatnonzero((rows.step == STEP) & (rows.src == SENDER) & (rows.dst == RECEIVER))
    return {name: column[row] for name, column in vars(rows).items()}


def lines_of(form: Form) -> npt.NDArray[np.int32]:
    """The rows of a form: step, marks, source, target, peer."""
    return np.frombuffer(form.rows, np.int32).reshape(-1, 5)


def row_in(form: Form, mark: int) -> int:
    """The number of the row in the form of the rank that sends it, or receives it."""
    lines = lines_of(form)
    [row] = np.flatnonzero((lines[:, 0] == STEP) & (lines[:, 1] & mark > 0))
    return int(row)


def cells_of_form_row(form: Form, mark: int) -> Cells:
    """The row of a form, its marks in words."""
    row = row_in(form, mark)
    step, marks, *numbers = lines_of(form)[row].tolist()
    return [row, step, " ".join(name for name, bit in MARKS.items() if marks & bit), *numbers]


def cells_of_locations(form: Form, mark: int) -> Cells:
    """The spot of the row of a form, and where it lies before it is written, and from then on."""
    number = int(lines_of(form)[row_in(form, mark), 2 if mark == SENDS else 3])
    codes = np.frombuffer(form.spots, np.int32).reshape(-1, 2)[number].tolist()
    return [number, *(f"{code} ({code >> 2} in the {SPACE_NAMES[code & 3]})" for code in codes)]


def outlines(forms: Sequence[Form]) -> list[Outline]:
    """The outline of each form."""
    writer = OutlineWriter()
    for form in forms:
        _FormLowering(form, writer).run()
    return writer.outlines()


def number_in(outline: Outline, row: int, mark: int) -> int:
    """The instruction of an outline that sends, or receives, the message of this row of the form."""
    entries, column = (outline.destinations, 3) if mark == SENDS else (outline.sources, 2)
    [entry] = np.flatnonzero((entries[:, 1] == REMOTE) & (entries[:, 2] == row))
    return int(np.searchsorted(outline.instructions[:, column], entry, side="right"))


def cells_of_instruction(plan: Outline | Plan, number: int) -> Cells:
    """One instruction, with its parts of the three lists."""
    begins = plan.instructions[number - 1, 2:5].tolist() if number else [0, 0, 0]
    step, chunk, *ends, flags = plan.instructions[number].tolist()
    lists = (plan.sources, plan.destinations, plan.dependencies)
    parts = [entries[begin:end].tolist() for entries, begin, end in zip(lists, begins, ends, strict=True)]
    return [number, step, chunk, flags, *(" ".join(map(str, part)) or "none" for part in parts)]


def ring_rank(file: str) -> None:
    """One rank of the call that is traced."""
    communicator = hocket.init()
    x = np.ones(ELEMENTS, np.float32)
    with hocket.trace(file, steps=True):
        communicator.all_reduce(x, algorithm="ring")


def pieces() -> list[Cells]:
    """What the sender sends to the receiver in a real call, in the order of sending: piece + step, step, piece, KiB."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        hocket.run_ranks(ring_rank, NUM_RANKS, kind="thread", args=(str(file),))
        events = json.loads(file.read_text())["traceEvents"]
    sent = [event for event in events if event["pid"] == SENDER and event["name"] == f"send to {RECEIVER}"]
    moves = [event["args"] for event in sorted(sent, key=lambda event: event["ts"])]
    return [
        (step + piece, step, piece, num_bytes >> 10, "the row" if step == STEP else "")
        for step, piece, num_bytes in ([move[name] for name in ("step", "piece", "bytes")] for move in moves)
    ]


def page() -> str:
    """The whole page."""
    schedule = ALGORITHMS["all_reduce", "ring"].build(NUM_RANKS)
    repeat, row = schedule.repeats[0], cells_of_row(schedule, STEP)
    rows = transfers(schedule)
    transfer = cells_of_transfer(rows)
    forms = Forms(RankTransfers(schedule, rows, range(NUM_RANKS)), in_place=False).forms
    ends = [(rank, forms[rank], mark) for rank, mark in ((SENDER, SENDS), (RECEIVER, RECEIVES))]
    made, plans = outlines(forms), lower_all(schedule, in_place=False)
    numbers = {rank: number_in(made[rank], row_in(form, mark), mark) for rank, form, mark in ends}
    joint = JointPlans(plans)
    messages = match_messages(joint)
    send, fold = (int(joint.first[rank]) + numbers[rank] for rank in (SENDER, RECEIVER))
    [message] = np.flatnonzero((messages.send == send) & (messages.fold == fold))
    earlier = joint.dependency[joint.dependent == send].tolist()
    waits = {**dict.fromkeys(earlier, ""), send: ", ".join(map(str, earlier)), fold: send}
    alike = [[rank for rank in range(NUM_RANKS) if forms[rank] == form] for form in dict.fromkeys(forms)]
    columns = ("rank", "instruction", "step", "chunk", "flags", "sources", "destinations", "depends on")
    text = TEXT.format(
        num_ranks=NUM_RANKS,
        step=STEP,
        previous=STEP - 1,
        sender=SENDER,
        receiver=RECEIVER,
        first=SENDER - 1,
        chunk=row["src_chunk"],
        stages=stages(schedule),
        code=code_of(schedule),
        times=repeat.times,
        shift=repeat.shift,
        num_chunks=schedule.num_chunks,
        rows=listing(("step", *COLUMNS), [(number, *cells_of_row(schedule, number).values()) for number in (0, STEP)]),
        width=places_of(schedule).width,
        folds=listing(("", "place", "rank", "chunk", "contributions of ranks"), cells_of_fold(schedule)),
        transfer=listing(transfer.keys(), [transfer.values()]),
        form_rows=listing(
            ("rank", "row", "step", "marks", "source", "target", "peer"),
            [(rank, *cells_of_form_row(form, mark)) for rank, form, mark in ends],
        ),
        locations=listing(
            ("rank", "spot's number", "before it is written", "home"),
            [(rank, *cells_of_locations(form, mark)) for rank, form, mark in ends],
        ),
        num_forms=len(alike),
        alike=" and ".join(f"one of {name_ranks(ranks)}" for ranks in alike),
        remote=REMOTE,
        outlines=listing(columns, [(rank, *cells_of_instruction(made[rank], numbers[rank])) for rank, _, _ in ends]),
        order=transfer["order"],
        plans=listing(columns, [(rank, *cells_of_instruction(plans[rank], numbers[rank])) for rank, _, _ in ends]),
        send=send,
        fold=fold,
        message=message,
        before=messages.follows[message],
        last=joint.num_instructions - 1,
        joint=listing(
            ("instruction", "what it does", "waits for"),
            [(number, joint.describe(number), waits[number]) for number in sorted(waits)],
        ),
        elements=ELEMENTS,
        chunk_kib=4 * ELEMENTS // schedule.num_chunks >> 10,
        pieces=listing(("piece + step", "step", "piece", "KiB", ""), pieces()[:7]),
    )
    return "\n\n".join(filled(paragraph) for paragraph in text.rstrip().split("\n\n")) + "\n"


def filled(paragraph: str) -> str:
    """Prose in lines of 120 characters; all else as it is."""
    is_prose = not paragraph.startswith(("#", "|", "```"))
    return textwrap.fill(paragraph, 120, break_on_hyphens=False) if is_prose else paragraph


def main() -> None:
    """Writes the page."""
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
