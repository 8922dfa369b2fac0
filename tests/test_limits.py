"""The core compares lengths only with those of base/limits.h and of a profile: there one sees where ways change."""

import re
from pathlib import Path

import pytest

from tests.test_include_law import CORE, sources

LIMITS = {"base/limits.h", "machine/profile.cpp", "machine/profile.h"}
# Other lengths and counts: the unit of all plans, a cell of a slot, pages of the system, memory that is only measured.
OTHERS = {
    "base/types.h": {"piece_bytes"},
    "base/waiting.h": {"max_yields"},
    "control/control.h": {"max_members"},
    "control/guard.h": {"max_endpoints"},
    "kernels/rates.cpp": {"huge_page", "round_bytes"},
    "trace/trace.h": {"chunk_records"},
    "transport/shm/arena.cpp": {"huge_page"},
    "transport/shm/context.h": {"most_slots"},
    "transport/shm/shm.h": {"cell_bytes"},
}
COMMENT = re.compile(r"//.*")
COMPARED = re.compile(r"[<>]=?\s*(?:std::size_t\{)?(?:\d[\d']{3,}|\d+\}? << (?:10|20))")
NAMED = re.compile(r"\b(\w+) = \(?(?:std::size_t\{\d+\} << (?:10|14|20)|\d{4,}\b)")


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(CORE)))
def test_lengths_stand_in_the_file_of_limits(path: Path) -> None:
    name = str(path.relative_to(CORE))
    if name in LIMITS or name.startswith(("bindings/", "simulator/")):
        return
    text = COMMENT.sub("", path.read_text())
    assert COMPARED.findall(text) == []
    assert set(NAMED.findall(text)) <= OTHERS.get(name, set())


def test_limits_are_few() -> None:
    profile = (CORE / "machine/profile.h").read_text()
    fields = re.findall(r"(\w+) = (?:std::size_t|never)", profile)
    limits = re.findall(r"(\w+) = (?:std::size_t\{|\d)", (CORE / "base/limits.h").read_text())
    assert len(limits) >= 10 and len(fields) >= 5
    assert len(limits) + len(fields) <= 20, (limits, fields)
