"""Frames of a program and of Hocket: where the program is, and tracebacks without Hocket's own frames."""

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from hocket import errors
from hocket.runtime.variables import DEBUG

T = TypeVar("T")

_PACKAGE = f"{Path(errors.__file__).parent}{os.sep}"
_LIBRARY = f"{Path(os.__file__).parent}{os.sep}"  # Python's own
_PACKAGES = f"{os.sep}site-packages{os.sep}"  # what is installed beside Hocket, such as PyTorch


_START = "INIT"


def debugging() -> bool:
    """Returns whether tracebacks keep Hocket's own frames: if HOCKET_DEBUG has a word such as 1, other than INIT."""
    return bool(_debug_words() - {"", "0", _START})


def debugging_start() -> bool:
    """Returns whether ranks tell what they know of themselves as they start: if HOCKET_DEBUG has the word INIT."""
    return _START in _debug_words()


def _debug_words() -> set[str]:
    """Returns the words of HOCKET_DEBUG, which commas separate."""
    return {word.strip().upper() for word in os.environ.get(DEBUG, "").split(",")}


def without_own(frames: Sequence[T], file_of: Callable[[T], str]) -> list[T]:
    """Returns the frames without those inside Hocket, and without what Hocket calls in Python's own library."""
    kept: list[T] = []
    inside = False
    for frame in frames:
        file = file_of(frame)
        is_library = file.startswith((_LIBRARY, "<frozen ")) and _PACKAGES not in file
        inside = file.startswith(_PACKAGE) or (inside and is_library)
        if not inside:
            kept.append(frame)
    return kept


def short_site(site: str) -> str:
    """Returns a "file:line" relative to the working directory, if it lies below that."""
    with contextlib.suppress(OSError):  # that directory may be gone
        return site.removeprefix(f"{Path.cwd()}{os.sep}")
    return site


def site_of(trace: TracebackType | None) -> str:
    """Returns the innermost line of the program in the frames of an exception, or ""."""
    site = ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        site = short_site(f"{file}:{trace.tb_lineno}") if is_of_program(file) else site
        trace = trace.tb_next
    return site


def is_of_program(file: str) -> bool:
    """Returns whether a file belongs neither to Hocket, nor to Python, nor to an installed package."""
    return not file.startswith((_PACKAGE, _LIBRARY, "<frozen ")) and _PACKAGES not in file


def without_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """Returns the traceback without the frames inside Hocket; if all are, its last one is left."""
    if debugging():
        return trace
    all_of_it: list[TracebackType] = []
    while trace is not None:
        all_of_it.append(trace)
        trace = trace.tb_next
    kept = without_own(all_of_it, lambda one: one.tb_frame.f_code.co_filename) or all_of_it[-1:]
    after: TracebackType | None = None
    for one in reversed(kept):
        one.tb_next = after
        after = one
    return after
