"""Tables as the CSV files that torch.distributed.pipelining reads and writes.

A line is a rank, a cell an operation: stage, kind, micro-batch, for example 2F3. Kinds are F, I (B in Hocket), W, B (G
in Hocket); an overlapped pair is (0F7;7B3)OVERLAP_F_B; an empty cell says nothing. PyTorch calls this `compute_only`.
Files of its format `compute_comms` also have SEND_F, RECV_F, SEND_B, RECV_B, which become the table's `messages`.
UNSHARD, RESHARD and REDUCE_GRAD concern weights, not the pipeline: they are read over, and REDUCE_GRAD, with which
PyTorch divides gradients, is written after the last backward of each stage.
"""

import csv
import os
import re
from pathlib import Path

import numpy as np

from hocket.training.pipeline.pipeline_channels import rendezvous_order
from hocket.training.pipeline.table import (
    FORWARD,
    FULL_BACKWARD,
    INPUT_BACKWARD,
    WEIGHT_BACKWARD,
    Ints,
    MessageOrder,
    PipelineTable,
    table_of,
)

_LETTERS = {"F": FORWARD, "I": INPUT_BACKWARD, "W": WEIGHT_BACKWARD, "B": FULL_BACKWARD}
_LETTER_OF = {kind: letter for letter, kind in _LETTERS.items()}
_NUMBER = "([0-9]{1,9})"
_OPERATION = re.compile(f"{_NUMBER}([FIWB]){_NUMBER}")
_PAIR = re.compile(r"\((.*);(.*)\)OVERLAP_F_B")
_MESSAGE = re.compile(f"{_NUMBER}(SEND|RECV)_([FB]){_NUMBER}")
_OF_WEIGHTS = re.compile(f"{_NUMBER}(UNSHARD|RESHARD|REDUCE_GRAD)")

_Told = tuple[int, int, bool, str, int, int]
"""A message that a file tells: rank, position, whether it is sent, F or B, stage, micro-batch."""


def read_torch_csv(path: str | os.PathLike[str]) -> PipelineTable:
    """The table of a file in either format, with each stage on the rank where it appears first. Nothing is proved yet.

    ValueError names the line and cell that is wrong.
    """
    operations: list[list[tuple[int, int, int, int]]] = []
    told: list[_Told] = []
    with Path(path).open(newline="") as file:
        for rank, line in enumerate(csv.reader(file)):
            operations.append([])
            for column, cell in enumerate(line, 1):
                try:
                    _read_cell(cell.replace(" ", ""), rank, operations[-1], told)
                except ValueError as error:
                    raise ValueError(f"{path}: line {rank + 1}, cell {column}: {error}") from None
    homes: dict[int, int] = {}
    for rank, rows in enumerate(operations):
        for _, stage, _, _ in rows:
            homes.setdefault(stage, rank)
    if not homes or sorted(homes) != list(range(len(homes))) or set(homes.values()) != set(range(len(operations))):
        raise ValueError(
            f"{path}: expected stages from 0 without a gap, at least one on each of {len(operations)} ranks, "
            f"found stages {sorted(homes)} on ranks {sorted(set(homes.values()))}"
        )
    num_microbatches = 1 + max(row[2] for rows in operations for row in rows)
    placement = np.array([[homes[stage] for stage in range(len(homes))]])
    columns = [np.array(rows, np.int32) for rows in operations]
    messages = _messages(path, np.concatenate(columns), told) if told else None
    return table_of(Path(path).stem, num_microbatches, placement, columns, messages=messages)


def _read_cell(cell: str, rank: int, rows: list[tuple[int, int, int, int]], told: list[_Told]) -> None:
    if cell == "" or _OF_WEIGHTS.fullmatch(cell):
        return
    if message := _MESSAGE.fullmatch(cell):
        stage, verb, direction, microbatch = message.groups()
        position = sum(1 - joined for *_, joined in rows)
        told.append((rank, position, verb == "SEND", direction, int(stage), int(microbatch)))
        return
    pair = _PAIR.fullmatch(cell)
    for joined, text in enumerate(pair.groups() if pair else (cell,)):
        operation = _OPERATION.fullmatch(text)
        if not operation:
            raise ValueError(f"expected an operation such as 2F3, (0F7;7B3)OVERLAP_F_B or 1SEND_F0, found {text!r}")
        stage, letter, microbatch = operation.groups()
        rows.append((_LETTERS[letter], int(stage), int(microbatch), joined))


def _messages(path: str | os.PathLike[str], rows: Ints, told: list[_Told]) -> MessageOrder:
    row_of = {}
    for number, (kind, stage, microbatch, _) in enumerate(rows.tolist()):
        if kind != WEIGHT_BACKWARD:
            row_of["F" if kind == FORWARD else "B", stage, microbatch] = number
    for rank, _, sends, direction, stage, microbatch in told:
        if (direction, stage, microbatch) not in row_of:
            verb = "SEND" if sends else "RECV"
            text = f"{stage}{verb}_{direction}{microbatch} belongs to no operation of stage {stage}"
            raise ValueError(f"{path}: line {rank + 1}: {text}")
    return MessageOrder(
        rank=np.array([rank for rank, *_ in told]),
        row=np.array([row_of[message[3:]] for message in told]),
        sends=np.array([sends for _, _, sends, *_ in told]),
        position=np.array([position for _, position, *_ in told]),
    )


def write_torch_csv(table: PipelineTable, path: str | os.PathLike[str], *, messages: bool = False) -> None:
    """Write a table in the format `compute_only`, or with messages, in `compute_comms`.

    Messages are those of the table, or else `rendezvous_order`, which never waits in a cycle. ValueError if a stage is
    on two ranks, which PyTorch does not know; VerifyError if messages are asked for and the table breaks law 1 or 2.
    """
    if len(table.placement) > 1:
        raise ValueError(f"{table.name} has each stage on two ranks, but PyTorch knows one: write dualpipev instead")
    cells = _cells(table)
    first = table.first_block.tolist()
    lines = [cells[first[rank] : first[rank + 1]] for rank in range(table.num_ranks)]
    if messages:
        lines = _with_messages(table, lines)
    with Path(path).open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(lines)


def _cells(table: PipelineTable) -> list[str]:
    """The cell of each block."""
    cells: list[str] = []
    columns = (table.kind, table.stage, table.microbatch, table.block)
    for kind, stage, microbatch, block in zip(*(column.tolist() for column in columns), strict=True):
        text = f"{stage}{_LETTER_OF[kind]}{microbatch}"
        if block < len(cells):
            cells[block] = f"({cells[block]};{text})OVERLAP_F_B"
        else:
            cells.append(text)
    return cells


def _with_messages(table: PipelineTable, lines: list[list[str]]) -> list[list[str]]:
    order = table.messages or rendezvous_order(table)
    after: list[list[list[str]]] = [[[] for _ in range(len(line) + 1)] for line in lines]  # by rank and position
    for number, row in enumerate(order.row.tolist()):
        verb, direction = "SEND" if order.sends[number] else "RECV", "B" if table.backward[row] else "F"
        text = f"{table.stage[row]}{verb}_{direction}{table.microbatch[row]}"
        after[order.rank[number]][order.position[number]].append(text)
    last: dict[int, int] = {}  # by stage, the row of its last backward
    for row in np.flatnonzero((table.kind == WEIGHT_BACKWARD) | (table.kind == FULL_BACKWARD)).tolist():
        last[int(table.stage[row])] = row
    for stage, row in last.items():
        after[table.rank[row]][table.position[row] + 1].append(f"{stage}REDUCE_GRAD")
    return [
        [cell for position, here in enumerate(after[rank]) for cell in (*line[position - 1 : position], *here)]
        for rank, line in enumerate(lines)
    ]
