"""Algorithms by the names that users give: registered ones, or those of a file, which runs when it is loaded."""

import re
import sys
import threading
from collections.abc import Collection, Sequence
from pathlib import Path
from types import ModuleType

from hocket.algorithms.msccl_file import algorithm_of
from hocket.algorithms.registry import ALGORITHMS, REGISTERED, Algorithm, tell_replaced
from hocket.algorithms.user_code import blamed_on, modules_beside, print_aside
from hocket.errors import ScheduleError, did_you_mean
from hocket.schedule import find_collective

_NAMED = re.compile(r"(.+\.(?:py|xml|json)):(.*)", re.DOTALL)  # FILE.py:NAME; the last such colon ends the file name

_loading = threading.RLock()  # One file at a time, because a file's algorithms are those that were added while it ran.
_running: set[Path] = set()  # Files that are being run; guarded by _loading.
# What each file has registered by imports, which Python may not run again; guarded by _loading.
_by_import: dict[Path, dict[tuple[str, str], Algorithm]] = {}


def find(reference: str | Algorithm, collective: str | None = None) -> list[Algorithm]:
    """All algorithms with this name, or those of a file (see load); with `collective`, only those for it.

    An Algorithm stands for itself. ValueError, with a list of what exists, if there is none.
    """
    if collective is not None:
        find_collective(collective)
    if isinstance(reference, Algorithm):
        if collective not in (None, reference.collective):
            raise ValueError(f"expected an algorithm for {collective}; found {reference}")
        return [reference]
    if not isinstance(reference, str):
        raise TypeError(
            "expected an algorithm: a name, FILE.py:NAME, or what @hocket.algorithm(...) returns; "
            f"found {type(reference).__name__} {reference!r}"
        )
    known, path = list(ALGORITHMS.values()), ""
    found = [one for one in known if one.name == reference]
    if not found and (_split(reference)[0].endswith((".py", ".xml", ".json")) or Path(reference).is_file()):
        path, known = _split(reference)[0], load(reference)
        found = known
    fitting = [one for one in found if collective in (None, one.collective)]
    if found and not fitting:
        raise _unfitting(reference, collective, found, path)
    if not fitting:
        raise _unknown(reference, collective, known, path)
    return fitting


def only(reference: str | Algorithm, fitting: Sequence[Algorithm]) -> Algorithm:
    """The only algorithm that find has found for a collective; ValueError if a file has several of them."""
    if len(fitting) > 1:
        names = ", ".join(one.name for one in fitting)
        raise ValueError(f"expected {reference}:NAME, one of {names} for {fitting[0].collective}; found {reference!r}")
    return fitting[0]


def load(reference: str) -> list[Algorithm]:
    """The algorithms that a user's file registers: "my_algorithm.py", or "my_algorithm.py:name" for one of them.

    A file of MSCCL, "FILE.xml", or MSCCL++, "FILE.json", has one algorithm, which is not registered. Any other file
    runs every time that it is loaded. The modules beside it that it imports run again too, unless the program itself
    has imported them.
    What any other module registers when it is imported belongs to the file that imports it first. Nothing is
    proved: a communicator proves an algorithm for its own rank count before it runs there. What the file prints goes to
    standard error. ValueError if the file registers no
    algorithm (of that name); ScheduleError, with the line, if it cannot run. Threads take turns.
    """
    path, name = _split(reference)
    if not Path(path).is_file():
        raise ValueError(f"expected an algorithm, FILE.py, FILE.py:NAME, FILE.xml or FILE.json; found no file {path!r}")
    if path.endswith((".xml", ".json")):
        one = algorithm_of(path)
        if name not in ("", one.name):
            raise _unknown(reference, None, [one], path)
        return [one]
    with _loading:
        before, by_import = dict(ALGORITHMS), _by_import.setdefault(Path(path).resolve(), {})
        try:
            REGISTERED.update({key: one for key, one in by_import.items() if key not in before})
            try:
                run_file(path)
            finally:
                new = _registered_since(before, "")
                by_import |= {(one.collective, one.name): one for one in new if one.source.rpartition(":")[0] != path}
            others = {key: one for key, one in before.items() if by_import.get(key) is not one}
            made = _registered_since(others, name)
            if not made:
                raise _unknown(reference, None, _registered_since(others, ""), path)
        except BaseException:  # Remove what is wrong or not proved; other threads may be reading the rest.
            for one in _registered_since(before, ""):
                del REGISTERED[one.collective, one.name]
            REGISTERED.update(before)
            tell_replaced()
            raise
    return made


def _split(reference: str) -> tuple[str, str]:
    """The path and the name in "FILE.py:NAME"; the name is empty in "FILE.py". Names of folders may contain colons."""
    named = None if Path(reference).exists() else _NAMED.fullmatch(reference)
    return (named[1], named[2]) if named else (reference, "")


def _unknown(reference: str, collective: str | None, known: Collection[Algorithm], path: str) -> ValueError:
    """The error for an algorithm that is not among those known; with a path, these are the algorithms of that file."""
    names = sorted(one.name for one in known if one.collective == collective)
    if reference == "synthesised":
        kind = repr(collective) if collective else "COLLECTIVE"
        return ValueError(
            f"synthesised: it is made for one network, and none is given; call hocket.synthesise({kind}, "
            "topology=...) on every rank before, or run a file: hocket optimum COLLECTIVE --topology ... --msccl "
            "FILE.xml; hocket show, verify, simulate and explain take it with --topology"
        )
    if not path:
        names = names or sorted({one.name for one in known})  # With their collectives, the names would fill the screen.
        there = f"one of {', '.join(names)} or FILE.py:NAME"
    elif names := names or sorted(f"{one.name} ({one.collective})" for one in known):
        there = f"one of those in {path}, {', '.join(names)}"
    else:
        there = f"registered by @hocket.algorithm(...) in {path}, which registers none"
    wanted = "an algorithm" + (f" for {collective}" if collective else "")
    asked = _split(reference)[1] if path else reference
    alike = {one.name for one in known if one.collective == collective} or {one.name for one in known}
    near = "" if asked in alike else did_you_mean(asked, alike)
    if near and not path:  # the long list of names comes last
        return ValueError(f"found {reference!r}{near} Expected {wanted}, {there}")
    return ValueError(f"expected {wanted}, {there}; found {reference!r}{near}")


def _unfitting(reference: str, collective: str | None, found: Sequence[Algorithm], path: str) -> ValueError:
    """The error for an algorithm, or a file, that is for other collectives; a file's fitting algorithms are named."""
    beside = [one for one in ALGORITHMS.values() if not path or one.source.rpartition(":")[0] == path]
    names = ", ".join(sorted(one.name for one in beside if one.collective == collective))
    there = f"one of those in {path}, {names}" if path else f"one of {names} or FILE.py:NAME"
    if not names:
        there = f"but {path} has none"
    if len({one.name for one in found}) == 1:
        kinds = f"{found[0].name} is for {', '.join(sorted(one.collective for one in found))}"
    else:
        kinds = f"it has {', '.join(sorted(f'{one.name} ({one.collective})' for one in found))}"
    return ValueError(f"expected an algorithm for {collective}, {there}; found {reference!r}; {kinds}")


def _registered_since(before: dict[tuple[str, str], Algorithm], name: str) -> list[Algorithm]:
    return [one for key, one in list(ALGORITHMS.items()) if before.get(key) is not one and name in ("", one.name)]


def run_file(path: str) -> ModuleType:
    """Run a user's file as a module of its own, every time: an import would run it only once. Threads take turns.

    What it prints goes to standard error. ScheduleError, with the line, if it cannot run.
    """
    with _loading:
        return _run(path)


def _run(path: str) -> ModuleType:
    module, file = ModuleType(f"_hocket_loaded_{Path(path).stem}"), Path(path).resolve()
    module.__file__ = path
    module.__dict__["print"] = print_aside
    if file in _running:
        raise ScheduleError(
            "expected a file that only registers algorithms when it is loaded; found one that asks for its own; put "
            'what uses them under `if __name__ == "__main__":`'
        )
    content = file.read_bytes()
    sys.modules[module.__name__] = module  # Dataclasses of the file look for it there.
    _running.add(file)
    try:
        with blamed_on(path, path), modules_beside(file):
            exec(compile(content, path, "exec"), module.__dict__)
    finally:
        _running.remove(file)
    return module
