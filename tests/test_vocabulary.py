"""One word, one meaning: names of classes and files are unique, and tables agree across the two languages."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import numpy as np

from hocket import _core, runtime
from hocket.runtime.failures import Cause
from hocket.schedule import (
    COLLECTIVES,
    DTYPE_TABLE,
    DTYPES,
    REDUCTIONS,
    find_collective_name,
    numpy_dtype,
    plain_spelling,
)

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "hocket"
SHARED_FILE_NAMES = {  # name -> why several files have it
    "__init__": "the face of its folder",
    "command": "the sub-command that its folder is named after",
    "verify": "cli/verify.py is the sub-command that calls schedule/proof/verify.py",
}


def test_no_class_name_is_used_twice() -> None:
    found = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    twice = {name: places for name, places in found.items() if len(places) > 1}
    assert len(found) > 100 and twice == {}, "give each class its own name"


def test_no_file_name_is_used_twice() -> None:
    found = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        found[path.stem].append(str(path.relative_to(SOURCE)))
    twice = {name: files for name, files in found.items() if len(files) > 1}
    assert twice.keys() == SHARED_FILE_NAMES.keys(), "give each file its own name, or a reason in SHARED_FILE_NAMES"
    assert all(path == "cli/verify.py" or path == "schedule/proof/verify.py" for path in twice["verify"])


def test_element_types_and_reductions_are_those_of_the_core() -> None:
    assert _core.DTYPES == DTYPES == runtime.DTYPES
    assert _core.OPS == REDUCTIONS == runtime.OPS
    sizes = re.search(r"dtype_sizes\{([\d, ]+)\}", (ROOT / "csrc/base/types.h").read_text())
    assert sizes is not None and [int(size) for size in sizes[1].split(",")] == [row.bytes for row in DTYPE_TABLE]


def test_digits_of_every_type_are_exact() -> None:
    for row in DTYPE_TABLE:
        largest, dtype = 2**row.digits - 1, numpy_dtype(row.name)
        assert int(np.array([largest]).astype(dtype).real.astype(object)[0]) == largest, row.name
        if "int" not in row.name and row.name != "bool":
            above = 2**row.digits + 1
            assert int(np.array([above]).astype(dtype).astype(np.complex128).real[0]) != above, row.name


def test_names_of_types_are_unique() -> None:
    assert len({row.name for row in DTYPE_TABLE}) == len({row.nccl for row in DTYPE_TABLE}) == len(DTYPE_TABLE)


def test_a_collective_is_found_in_both_spellings() -> None:
    for name in COLLECTIVES:
        assert {find_collective_name(text) for text in (name, plain_spelling(name), name.title())} == {name}
    assert find_collective_name("all_redcue") is None


def test_causes_of_failure_are_those_of_the_core() -> None:
    enum = re.search(r"enum class Cause : std::int32_t \{([^}]*)\}", (ROOT / "csrc/base/error.h").read_text())
    assert enum is not None
    assert [(one.name.lower(), one.value) for one in Cause] == [
        (name.strip(), number) for number, name in enumerate(enum[1].split(","))
    ]
