"""Calling what the author of an algorithm wrote.

A mistake in it is a ScheduleError that names file and line. What it prints does not mix with what commands print. It
finds the modules beside its file.
"""

import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from fractions import Fraction
from numbers import Rational
from pathlib import Path
from traceback import walk_tb
from types import ModuleType
from typing import Any

from hocket.algorithms.layout import partition
from hocket.errors import ScheduleError
from hocket.schedule import LABELS


@contextmanager
def blamed_on(file: str, place: str, what: str = "") -> Iterator[None]:
    """What goes wrong inside is a ScheduleError at the last line of `file` that ran, or at `place` if none did.

    `what` follows the place. Our own errors stay as they are, except a ScheduleError that names no line of the file.
    """
    try:
        yield
    except (Exception, SystemExit) as error:  # A file that exits must not pass for one that is right.
        text = _describe(error, file)
        if text is None:
            raise
        raise ScheduleError(f"{_line(error, file) or place}{what}: {text}") from error


@contextmanager
def modules_beside(file: Path) -> Iterator[None]:
    """Inside, imports look into the folder of a file first, and what they find there is forgotten afterwards.

    So it runs again whenever the file does, as it then is; and a file of another folder, with a module of the same name
    beside it, gets its own. What was imported before stays, and so does all where the program's own imports look into
    that folder: it may hold libraries, which cannot be loaded twice. The file is an absolute path.
    """
    folder, before = str(file.parent), set(sys.modules)
    remembered = file.parent in {Path(place).resolve() for place in sys.path}
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with suppress(ValueError):  # if the file has taken it out itself
            sys.path.remove(folder)
        new = set() if remembered else set(sys.modules) - before
        beside = {name for name in new if "." not in name and _place(sys.modules[name]) == file.parent}
        for name in new:
            if name.partition(".")[0] in beside:
                del sys.modules[name]


def _place(module: ModuleType) -> Path | None:
    """The folder in which a module's file, or a package's folder, lies."""
    place = next(iter(getattr(module, "__path__", ())), None) or getattr(module, "__file__", None)
    return Path(place).parent if place else None


def print_aside(*values: object, **options: Any) -> None:
    """The `print` of a user's file: to standard error, as standard output may be a report that programs read.

    So it is in every process that runs the file, and for nobody else in it.
    """
    options.setdefault("file", sys.stderr)
    print(*values, **options)


def number(name: str, value: Any) -> Fraction:
    """A parameter's value as a number; ScheduleError if it is none."""
    try:
        return Fraction(value) if isinstance(value, Rational) else Fraction(float(value))
    except (TypeError, ValueError, OverflowError):
        raise ScheduleError(f"expected {name}= to give a number, found {value!r}") from None


def whole_number(name: str, value: Any) -> int:
    """A parameter's value as an integer; ScheduleError if it is none."""
    exact = number(name, value)
    if exact.denominator != 1:
        raise ScheduleError(f"expected {name}= to give a whole number, found {value!r}; use // for whole division")
    return int(exact)


def default_partition(name: str, value: Any, num_ranks: int) -> tuple[int, ...]:
    """The default of groups or dims as whole numbers; ScheduleError unless they sum, or multiply, to num_ranks."""
    try:
        return partition(f"expected {name}= to give its default", name, value, num_ranks)
    except ValueError as error:
        raise ScheduleError(str(error)) from None


def check_arguments(
    source: str,
    texts: Mapping[str, object],
    parameters: Mapping[str, object],
    labels: Collection[object],
    ranks: object,
) -> None:
    """ScheduleError, at source, unless texts are such or None, parameters can be called, and the rest is as it should.

    A name is needed.
    """
    for name, text in texts.items():
        if not isinstance(text, str | None) or (name == "name" and not text):
            raise ScheduleError(f"{source}: expected {name}= to be a text; found {text!r}")
    for name, parameter in parameters.items():
        if parameter is not None and not callable(parameter):
            raise ScheduleError(
                f"{source}: expected {name}= to be a function of the rank count, as `lambda p: {parameter!r}`; "
                f"found {parameter!r}"
            )
    if not set(labels) <= set(LABELS):
        raise ScheduleError(f"{source}: expected labels= to be a tuple of some of {LABELS}; found {labels!r}")
    match ranks:
        case None:
            return
        case (str(), condition) | (str(), condition, str()) if callable(condition):
            return
    raise ScheduleError(
        f'{source}: expected ranks= as ("an even number of", lambda p: p % 2 == 0), for one; found {ranks!r}'
    )


def _describe(error: BaseException, file: str) -> str | None:
    """What to say of an error; None for one that says itself where it comes from."""
    if isinstance(error, ScheduleError):
        named = type(error) is not ScheduleError or f"{file}:" in str(error)
        return None if named else str(error)
    if type(error).__module__ == ScheduleError.__module__:
        return None
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _line(error: BaseException, file: str) -> str | None:
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    lines = [line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == file]
    return f"{file}:{lines[-1]}" if lines else None
