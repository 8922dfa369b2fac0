"""The pipeline table that a caller asks for: by name, from a function, from PyTorch's CSV, or from a Python file."""

import csv
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any, TypeAlias

from hocket.algorithms import blamed_on, run_file
from hocket.errors import did_you_mean
from hocket.training import pipeline as pipelines

PipelineReference: TypeAlias = (
    str
    | os.PathLike[str]
    | pipelines.PipelineSchedule
    | pipelines.PipelineTable
    | Callable[[int, int, int, int], Sequence[Any]]
)
"""A name, a file, a function of (rank, p, m, v), or what such a function has become."""

_NAMED = re.compile(r"(.+\.py):(.*)", re.DOTALL)  # FILE.py:NAME; the last such colon ends the file name
_DEFAULT_RANKS, _DEFAULT_MICROBATCHES = 4, 8
_MOST_FORWARDS = 1 << 23  # in a table; above, a proof takes minutes and gigabytes
_FILES = "FILE.csv of PyTorch, FILE.py or FILE.py:NAME"


def table_asked(
    schedule: PipelineReference | object, ranks: int | None, microbatches: int | None, chunks: int | None
) -> pipelines.PipelineTable:
    """Returns the table of a schedule, for 4 ranks and 8 micro-batches unless it says otherwise. Nothing is proved.

    A CSV file and a table have their own counts, which may be repeated. Raises ValueError or TypeError for a bad
    argument, and ScheduleError with the line for a Python file that cannot run.
    """
    asked = {"ranks": ranks, "microbatches": microbatches, "chunks": chunks}
    for name, count in asked.items():
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
            raise ValueError(f"expected {name} of 1 or more, found {count!r}")
    if isinstance(schedule, pipelines.PipelineTable):
        return _with_counts(schedule, asked)
    if isinstance(schedule, os.PathLike):
        schedule = os.fspath(schedule)
    if not isinstance(schedule, str):
        if not (isinstance(schedule, pipelines.PipelineSchedule) or callable(schedule)):
            found = f"{type(schedule).__name__} {schedule!r}"
            raise TypeError(f"expected a pipeline schedule: a name, {_FILES}, a function or a table; found {found}")
        return _built(schedule, asked)
    if schedule in pipelines.SCHEDULES:
        return _built(schedule, asked)
    named = None if Path(schedule).exists() else _NAMED.fullmatch(schedule)
    path, name = (named[1], named[2]) if named else (schedule, "")
    if not path.endswith((".csv", ".py")):
        names, near = ", ".join(pipelines.SCHEDULES), did_you_mean(schedule, pipelines.SCHEDULES)
        raise ValueError(f"expected a pipeline schedule, one of {names}, or {_FILES}; found {schedule!r}{near}")
    if not Path(path).is_file():
        raise ValueError(f"expected a pipeline schedule in {_FILES}; found no file {path!r}")
    if path.endswith(".csv"):
        return _with_counts(_read(path), asked)
    writer = _writer(path, name)
    with blamed_on(path, path):
        return _built(writer, asked)


def _built(
    schedule: str | pipelines.PipelineSchedule | Callable[[int, int, int, int], Sequence[Any]],
    asked: dict[str, int | None],
) -> pipelines.PipelineTable:
    ranks = asked["ranks"] or _DEFAULT_RANKS
    microbatches = asked["microbatches"] or _DEFAULT_MICROBATCHES
    forwards = ranks * microbatches * (asked["chunks"] or 1)
    if forwards > _MOST_FORWARDS:
        raise ValueError(
            f"expected at most {_MOST_FORWARDS:,} forwards, which is ranks times microbatches times chunks; found "
            f"{forwards:,}; take fewer"
        )
    return pipelines.build_table(schedule, ranks, microbatches, asked["chunks"])


def _with_counts(table: pipelines.PipelineTable, asked: dict[str, int | None]) -> pipelines.PipelineTable:
    """Returns a table that exists. Raises ValueError if it has other counts than those asked for."""
    chunks = table.placement.size // table.num_ranks
    for name, count in zip(asked, (table.num_ranks, table.num_microbatches, chunks), strict=True):
        if asked[name] not in (None, count):
            raise ValueError(f"{table.name}: expected {name}={count}, as in the table, or none; found {asked[name]}")
    return table


def _read(path: str) -> pipelines.PipelineTable:
    try:
        return pipelines.read_torch_csv(path)
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: expected a CSV file of PyTorch, found none: {error}") from None


def _writer(path: str, name: str) -> pipelines.PipelineSchedule | Callable[[int, int, int, int], Sequence[Any]]:
    """Runs a file and returns its schedule of this name, or without a name its only one. Raises ValueError."""
    module = run_file(path)
    known = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, pipelines.PipelineSchedule)
        or (isinstance(value, FunctionType) and value.__module__ == module.__name__ and not key.startswith("_"))
    }
    if name in known:
        return known[name]
    if not name and len(known) == 1:
        return next(iter(known.values()))
    there = f"one of {', '.join(known)}" if known else "it has none"
    found = repr(f"{path}:{name}") if name else repr(path)
    raise ValueError(
        f"expected {path}:NAME, a function of (rank, p, m, v) or a PipelineSchedule of this file: {there}; found "
        f"{found}{did_you_mean(name, known)}"
    )
