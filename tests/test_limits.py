"""The core compares lengths only with those of base/limits.h and of a profile: there one sees where ways change."""

import re
from pathlib import Path

import pytest

from tests.test_include_law import CORE, sources

LIMITS = {"base/limits.h", "machine/profile.cpp", "machine/profile.h"}
# Counts, and the least that a measurement takes.
OTHERS = {
    "base/waiting.h": {"max_yields"},
    "bindings/calls/call_cache.h": {"max_calls"},
    "bindings/machine.cpp": {"most_cores"},
    "control/control.h": {"max_members"},
    "control/guard.h": {"max_endpoints"},
    "trace/trace.h": {"chunk_records"},
}
UNITS = {"piece_bytes", "cell_bytes", "huge_page_bytes"}
COMMENT = re.compile(r"//.*")
COMPARED = re.compile(r"[<>]=?\s*(?:std::size_t\{)?(?:\d[\d']{3,}|\d+\}? << (?:10|20))")
NAMED = re.compile(r"\b(\w+) = \(?(?:std::size_t\{\d+\} << (?:10|14|20)|\d{4,}\b)")


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(CORE)))
def test_lengths_stand_in_the_file_of_limits(path: Path) -> None:
    name = str(path.relative_to(CORE))
    if name in LIMITS or name.startswith("simulator/"):
        return
    text = COMMENT.sub("", path.read_text())
    assert COMPARED.findall(text) == []
    assert set(NAMED.findall(text)) <= OTHERS.get(name, set())


def test_limits_are_few() -> None:
    profile = (CORE / "machine/profile.h").read_text()
    fields = re.findall(r"(\w+) = (?:std::size_t|never)", profile)
    found = re.findall(r"(\w+) = (?:std::size_t\{|\d)", (CORE / "base/limits.h").read_text())
    limits = [name for name in found if name not in UNITS]
    assert len(limits) >= 10 and len(fields) >= 5
    assert len(limits) + len(fields) <= 20, (limits, fields)
