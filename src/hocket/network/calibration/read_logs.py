"""Reads a log of nccl-tests (text or JSON), of the OSU benchmarks, or of `hocket bench`, whichever it is."""

from pathlib import Path

from hocket.network.calibration.bench_json import read_json
from hocket.network.calibration.measured_calls import MeasuredTable
from hocket.network.calibration.nccl_text import read_nccl
from hocket.network.calibration.osu_text import is_osu, read_osu

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
    return read_osu(text, source) if is_osu(text) else read_nccl(text, source)
