"""Reads a log of nccl-tests (text or JSON), of the OSU benchmarks, or of `hocket bench`, whichever it is."""

import re
from pathlib import Path

from hocket.network.calibration.bench_csv import is_csv, read_csv
from hocket.network.calibration.bench_json import read_json
from hocket.network.calibration.measured_calls import MeasuredTable
from hocket.network.calibration.nccl_text import read_nccl
from hocket.network.calibration.osu_text import is_osu, read_osu

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# What launchers put before a line: `kubectl logs --timestamps`; `mpirun --tag-output`, perhaps with a date, of Open MPI
# 4 and 5; `srun -l`; Intel MPI's and MPICH's -l.
_TAG = re.compile(
    r"^\s*(?:\d{4}-\d\d-\d\d[T ][\d:.,]+(?:Z|[+-]\d\d:?\d\d)?\s)?"
    r"(?:(?:\w{3} \w{3} +\d+ [\d:]{8} \d{4})?\[[^\]\s]*\d,\d+\]<std(?:out|err)>:|\s*\d+:\s|\s*\[\d+\]\s)?"
)
_MOST_BYTES = 64 << 20  # of a log; a longer file is no log of a benchmark


def read_log(file: str | Path) -> tuple[MeasuredTable, ...]:
    """Returns the tables of a log, in order. Raises ValueError with the line for what is no such log, or damaged."""
    path = Path(file)
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError(f"{path.name}: expected a log of at most {_MOST_BYTES >> 20} MiB")
        text = path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise ValueError(f"expected a readable log; found {str(file)!r}: {error.strerror}") from None
    return read_log_text(text, path.name)


def read_log_text(text: str, source: str) -> tuple[MeasuredTable, ...]:
    """Returns the tables of a log that is given as text. source: its name in errors. Raises as read_log."""
    if text.lstrip().startswith("{"):
        return (read_json(text, source),)
    if is_csv(text):
        return (read_csv(text, source),)
    plain = "\n".join(_TAG.sub("", line).strip() for line in _COLOUR.sub("", text).split("\n"))
    return read_osu(plain, source) if is_osu(plain) else read_nccl(plain, source)
