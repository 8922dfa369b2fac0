"""One word, one meaning: no name of a class or of a file stands for two things."""

import ast
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "hocket"
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
