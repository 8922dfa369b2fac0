"""Calling code that the author of an algorithm wrote.

A mistake in it is a ScheduleError with file and line. What it prints does not mix with what commands print. It finds
the modules beside its file.
"""

import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from fractions import Fraction
from io import StringIO
from numbers import Rational
from pathlib import Path
from traceback import walk_tb
from types import ModuleType
from typing import Any

from hocket.algorithms.layout import partition
from hocket.errors import ScheduleError, did_you_mean
from hocket.schedule import LABELS, Builder


@contextmanager
def blamed_on(file: str, place: str, what: str = "") -> Iterator[None]:
    """An error inside becomes a ScheduleError at the last line of `file` that ran, or at `place` if no line of it ran.

    `what` follows the place. Errors of Hocket stay as they are, except a ScheduleError that names no line of the file.
    """
    try:
        yield
    except (Exception, SystemExit) as error:  # A file that exits must not look like a correct one.
        text = _describe(error, file)
        if text is None:
            raise
        raise ScheduleError(f"{_line(error, file) or place}{what}: {text}") from error


@contextmanager
def modules_beside(file: Path) -> Iterator[None]:
    """Inside, imports look into the folder of a file first; the modules found there are forgotten afterwards.

    So such a module runs again whenever the file does, in its newest version; and a file of another folder gets its own
    module of the same name. Modules that were imported before stay. So does everything if the program's own imports
    look into that folder too, because it may hold libraries that cannot be loaded twice. The file is an absolute path.
    """
    folder, before = str(file.parent), set(sys.modules)
    remembered = file.parent in {Path(place).resolve() for place in sys.path}
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with suppress(ValueError):  # if the file itself has removed it
            sys.path.remove(folder)
        new = set() if remembered else set(sys.modules) - before
        beside = {name for name in new if "." not in name and _place(sys.modules[name]) == file.parent}
        for name in new:
            if name.partition(".")[0] in beside:
                del sys.modules[name]


def _place(module: ModuleType) -> Path | None:
    """The folder of a module's file, or of a package's folder."""
    place = next(iter(getattr(module, "__path__", ())), None) or getattr(module, "__file__", None)
    return Path(place).parent if place else None


def print_aside(*values: object, **options: Any) -> None:
    """The `print` of a user's file. It writes to standard error, because standard output may be a report that programs
    read.

    Every process that runs the file uses it, for this file only. Ranks share standard error, so a call is one write.
    """
    if options.get("file") is not None:
        print(*values, **options)
        return
    whole = StringIO()
    print(*values, **options | {"file": whole, "flush": False})
    if sys.stderr is not None:
        sys.stderr.write(whole.getvalue())
        sys.stderr.flush()


def number(name: str, value: Any) -> Fraction:
    """A parameter's value as a number; ScheduleError if it is not a number."""
    try:
        return Fraction(value) if isinstance(value, Rational) else Fraction(float(value))
    except (TypeError, ValueError, OverflowError):
        raise ScheduleError(f"expected {name}= to give a number, found {value!r}") from None


def whole_number(name: str, value: Any) -> int:
    """A parameter's value as an integer; ScheduleError if it is not an integer."""
    exact = number(name, value)
    if exact.denominator != 1:
        raise ScheduleError(f"expected {name}= to give a whole number, found {value!r}; use // for whole division")
    return int(exact)


def default_partition(name: str, value: Any, num_ranks: int) -> tuple[int, ...]:
    """The default of groups or dims as whole numbers; ScheduleError unless the sum, or product, is num_ranks."""
    try:
        return partition(f"expected {name}= to give its default", name, value, num_ranks)
    except ValueError as error:
        raise ScheduleError(str(error)) from None


def check_arguments(
    source: str,
    texts: Mapping[str, object],
    promises: Mapping[str, object],
    parameters: Mapping[str, object],
    labels: Collection[object],
    ranks: object,
) -> None:
    """ScheduleError, with `source`, for a wrong argument of `algorithm`.

    Texts must be texts or None, and the name must not be empty; promises and parameters must be callable or None.
    """
    for name, text in texts.items():
        if not isinstance(text, str | None) or (name == "name" and text == ""):
            raise ScheduleError(f"{source}: expected {name}= to be a text; found {text!r}")
    for name, promise in promises.items():
        if promise is not None and not callable(promise):
            raise ScheduleError(
                f'{source}: expected {name}= to be a formula, such as "2 * (P - 1)", or a function of the rank count; '
                f"found {promise!r}"
            )
    for name, parameter in parameters.items():
        if parameter is not None and not callable(parameter):
            raise ScheduleError(
                f"{source}: expected {name}= to be a function of the rank count, such as `lambda p: {parameter!r}`; "
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
        f'{source}: expected ranks= such as ("an even number of", lambda p: p % 2 == 0); found {ranks!r}'
    )


def _describe(error: BaseException, file: str) -> str | None:
    """What to say about an error; None for an error that itself says where it comes from."""
    if isinstance(error, ScheduleError):
        named = type(error) is not ScheduleError or f"{file}:" in str(error)
        return None if named else str(error)
    if type(error).__module__ == ScheduleError.__module__:
        return None
    if isinstance(error, AttributeError) and isinstance(error.obj, Builder):
        methods, values = ("copy", "reduce", "step", "repeat", "include"), [*vars(error.obj)]
        known = [*methods, *(name for name in values if not name.startswith("_"))]
        return f"schedule has no {error.name!r}; expected one of {', '.join(known)}{did_you_mean(error.name, known)}"
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _line(error: BaseException, file: str) -> str | None:
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    lines = [line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == file]
    return f"{file}:{lines[-1]}" if lines else None
