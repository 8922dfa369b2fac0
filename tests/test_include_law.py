"""The include law of the core: a room of csrc/ includes only itself and rooms of a lower level, and has no circles."""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CORE = ROOT / "csrc"

# Rooms of one level do not know each other. The simulator shares nothing with the core but how both give up Python's
# lock, and core and simulator are two compiled modules.
LEVELS = {
    "base": 0,
    "machine": 1,
    "trace": 1,
    "plan": 1,
    "kernels": 2,
    "control": 2,
    "streams": 2,
    "route": 3,
    "transport": 4,
    "transport/shm": 5,
    "transport/tcp": 5,
    "executor": 6,
    "channels": 6,
    "mirrors": 6,
    "messages": 7,
    "communicator": 8,
    "bindings/python": 9,
    "bindings/calls": 10,
    "bindings": 11,
    "simulator": 12,
}
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


def sources() -> list[Path]:
    """Return the C++ files of the core and of the simulator."""
    return sorted(path for path in CORE.rglob("*") if path.suffix in {".h", ".cpp"})


def breaches(room: str, text: str) -> list[str]:
    """Return one line for each include of `text`, a file of `room`, that the law forbids."""
    found = []
    for name in INCLUDE.findall(text):
        other = str(Path(name).parent)
        if not (CORE / name).is_file():
            found.append(f"{name}: expected the path of a header below csrc/")
        elif other != room and LEVELS[other] >= LEVELS[room]:
            found.append(f"{name}: {room} must not include {other}")
        elif room == "simulator" and other not in {"simulator", "bindings/python"}:
            found.append(f"{name}: the simulator is no part of the core")
    return found


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(CORE)))
def test_a_file_of_the_core_keeps_the_include_law(path: Path) -> None:
    room = str(path.parent.relative_to(CORE))
    assert room in LEVELS, f"csrc/{room} is a new room: say in LEVELS and in ARCHITECTURE.md where it stands"
    assert breaches(room, path.read_text()) == []


@pytest.mark.parametrize(
    ("room", "header"),
    [
        ("base", "plan/plan.h"),  # upwards
        ("transport", "transport/shm/shm.h"),
        ("executor", "transport/absent.h"),
        ("executor", "channels/channels.h"),  # the same level
        ("machine", "trace/trace.h"),
        ("transport/shm", "executor/executor.h"),
        ("transport/shm", "transport/tcp/tcp.h"),
        ("executor", "executor.h"),  # not by its path
        ("simulator", "base/types.h"),
    ],
)
def test_a_forbidden_include_is_seen(room: str, header: str) -> None:
    assert len(breaches(room, f'#include "{header}"\n')) == 1
    assert breaches("executor", '#include "executor/executor.h"\n#include "transport/transport.h"\n') == []


def circle(includes: dict[str, set[str]]) -> list[str]:
    """Return a circle of headers that include each other, or nothing."""
    done: set[str] = set()

    def search(name: str, path: list[str]) -> list[str]:
        if name in path:
            return path[path.index(name) :]
        if name in done:
            return []
        found: Iterable[list[str]] = (search(other, [*path, name]) for other in sorted(includes.get(name, ())))
        result = next((one for one in found if one), [])
        done.add(name)
        return result

    return next((one for one in (search(name, []) for name in sorted(includes)) if one), [])


def test_headers_do_not_include_each_other_in_circles() -> None:
    includes = {str(path.relative_to(CORE)): set(INCLUDE.findall(path.read_text())) for path in sources()}
    assert circle(includes) == []
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c"]
