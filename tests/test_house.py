"""The house keeps its own rules: the Makefile explains itself, documents name what exists, nothing is unfinished."""

import ast
import re
import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

import hocket

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MAKEFILE = (ROOT / "Makefile").read_text()
DOCUMENTS = [
    path.relative_to(ROOT).as_posix()
    for path in [*sorted(ROOT.glob("*.md")), ROOT / "tests" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if path.parent.name != "lab"
]
SOURCE = ROOT / "src" / "hocket"
IN_SOURCE = {path.name for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
TEXT = {".py", ".h", ".cpp", ".md", ".toml", ".txt", ".yaml", ".yml", ".sh", ""}
MAX_LINES = 500
MEDIAN_LINES = 130
MAX_FILES = 18  # of one folder
MAX_WORDS = 22_500  # of all documents that are written, not generated
MAX_COURSE_WORDS = 2_200  # of docs/learn.md, which has every concept, its command and its program
LONG_FILES: dict[str, str] = {  # path -> why it is above MAX_LINES
    "tests/runtime/test_faults.py": "one drill after the other on one harness of processes",
}


def files() -> Iterator[Path]:
    """Yield every text file of the project; what is built, cached or hidden is not the project."""
    hidden = {"build", "dist", "__pycache__"}
    for path in sorted(ROOT.rglob("*")):
        parts = path.relative_to(ROOT).parts
        if any(part in hidden or (part.startswith(".") and part != ".ci") for part in parts):
            continue
        if path.is_file() and path.suffix in TEXT:
            yield path


def targets() -> dict[str, str]:
    """Return what the Makefile says of each of its targets."""
    return dict(re.findall(r"^([a-z-]+):.*?## (.+)$", MAKEFILE, re.MULTILINE))


def test_every_target_is_explained() -> None:
    phony = re.search(r"^\.PHONY: (.+)$", MAKEFILE, re.MULTILINE)
    assert phony is not None
    assert sorted(targets()) == sorted(phony[1].split())
    expected = "demo test check bench compare matrix backends algorithms sanitize mutation format build size clean"
    assert set(expected.split()) <= set(targets())


def test_make_alone_lists_the_targets() -> None:
    command = ["make", "--no-print-directory", "help"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert ".DEFAULT_GOAL := help" in MAKEFILE
    for name, meaning in targets().items():
        assert re.search(rf"^  make {name} +{re.escape(meaning)}$", listed, re.MULTILINE), name


@pytest.mark.parametrize("document", DOCUMENTS)
def test_document_names_only_what_exists(document: str) -> None:
    text = (ROOT / document).read_text()
    for target in re.findall(r"(?:`|^\$ )make ([a-z-]+)", text, re.MULTILINE):
        assert target in targets(), f"{document}: make {target}"
    folders = "src|csrc|tests|examples|benchmarks|docs"
    paths = [ROOT / path for path in re.findall(rf"(?:`|python )((?:{folders})/[\w./-]*)", text)]
    # Documents leave out src/hocket/, as in `schedule/ir.py`.
    paths += [SOURCE / path for path in re.findall(r"`([\w./-]+)`", text) if path.partition("/")[0] in IN_SOURCE]
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    paths += [(ROOT / document).parent / link for link in links]
    for path in paths:
        assert path.exists(), f"{document}: {path}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_document_names_only_commands_that_exist(document: str) -> None:
    from hocket.cli import _COMMANDS

    for command in re.findall(r"(?:`|^\$ )hocket ([a-z]+)", (ROOT / document).read_text(), re.MULTILINE):
        assert command in _COMMANDS, f"{document}: hocket {command}"


def test_licence() -> None:
    licence = (ROOT / "LICENSE").read_text()
    assert "Apache License" in licence and "Version 2.0, January 2004" in licence
    assert "TERMS AND CONDITIONS FOR USE, REPRODUCTION, AND DISTRIBUTION" in licence
    assert "END OF TERMS AND CONDITIONS" in licence
    assert PROJECT["project"]["license"] == "Apache-2.0"
    notice = (ROOT / "NOTICE").read_text()
    for data in (ROOT / "src" / "hocket" / "training").glob("*.csv.gz"):
        assert data.name in notice, f"{data.name} comes from elsewhere: NOTICE must give credit"


def test_installation_needs_little() -> None:
    names = {re.split(r"[<>=!~ ]", requirement)[0] for requirement in PROJECT["project"]["dependencies"]}
    assert names == {"numpy", "msgspec", "rich"}
    extras = PROJECT["project"]["optional-dependencies"]
    # Users may have a newer PyTorch; the tests run with one version, the oldest that users may have.
    assert extras["torch"] == ["torch>=2.13"] and "torch==2.13.0" in extras["test"]
    assert (ROOT / "src" / "hocket" / "py.typed").is_file()


def test_every_public_name_resolves() -> None:
    for name in hocket.__all__:
        assert getattr(hocket, name) is not None
        assert name in dir(hocket)


def test_nothing_is_left_unfinished() -> None:
    # Joined here, so that this file does not match itself.
    marks = ["TO" + "DO", "FIX" + "ME", "X" + "XX", "NotImplemented" + "Error", "pragma: no " + "cover"]
    words = re.compile("|".join(rf"\b{mark}\b" for mark in marks))
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in files()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if words.search(line)
    ]
    assert found == []


def test_every_sleep_of_a_test_has_its_reason() -> None:
    """A test waits for a condition (tests/waiting.py). If time itself is the case, a comment on the line says why."""
    sleep, reason = re.compile(r"\bsleep(?:_for)?\(|\btime\.sleep\b"), {".py": "#", ".cpp": "//", ".h": "//"}
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in files()
        if path.is_relative_to(ROOT / "tests") and path.suffix in reason and path != Path(__file__)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if sleep.search(line) and reason[path.suffix] not in line
    ]
    assert found == []


def test_what_comes_from_the_network_runs_no_code() -> None:
    """Objects of users are pickled above these layers, and a message of the runtime is data."""
    runs_code = {"pickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "eval", "exec", "compile"}
    found = []
    for folder in (SOURCE / "runtime" / "network", SOURCE / "runtime" / "rendezvous"):
        for path in folder.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                names += [node.func.id] if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else []
                found += [f"{path.name}:{node.lineno}: {name}" for name in names if runs_code & set(name.split("."))]
    assert found == []


def test_no_path_of_somebodys_machine() -> None:
    homes = re.compile(r"/(?:home|root|Users)/\w")
    found = [str(path.relative_to(ROOT)) for path in files() if homes.search(path.read_text(errors="replace"))]
    assert found == []


def test_headers_are_included_once() -> None:
    for path in (ROOT / "csrc").rglob("*.h"):
        assert path.read_text().count("#pragma once") == 1, path


def test_files_are_of_a_size_to_read() -> None:
    long = {
        str(path.relative_to(ROOT))
        for path in files()
        if path.suffix in {".py", ".h", ".cpp"} and len(path.read_text().splitlines()) > MAX_LINES
    }
    assert long == set(LONG_FILES), "split the file, or give the reason in LONG_FILES"


def test_rooms_and_files_are_small_enough_to_take_in() -> None:
    rooms: dict[Path, list[int]] = {}
    for path in SOURCE.rglob("*.py"):
        rooms.setdefault(path.parent, []).append(len(path.read_text().splitlines()))
    programs = SOURCE / "algorithms" / "programs"  # one idea, one file: as many as there are ideas
    sizes = Counter({room: len(lengths) for room, lengths in rooms.items()})
    sizes.update(path.parent for path in (ROOT / "csrc").rglob("*") if path.suffix in {".h", ".cpp"})
    crowded = {str(room.relative_to(ROOT)): size for room, size in sizes.items() if size > MAX_FILES}
    assert crowded.keys() <= {str(programs.relative_to(ROOT))}, "split the folder"
    assert median(length for lengths in rooms.values() for length in lengths) <= MEDIAN_LINES


def test_documents_are_short_enough_to_be_read() -> None:
    generated = {"docs/from-row-to-plan.md", "docs/calls.md"}  # like docs/reports, and the tables of docs/numbers.py
    counts = {}
    for document in DOCUMENTS:
        if "/reports/" not in document and document not in generated:
            text = re.sub(r"<!-- numbers:.*?<!-- end -->", "", (ROOT / document).read_text(), flags=re.DOTALL)
            counts[document] = sum(any(map(str.isalnum, word)) for word in text.split())  # bars of tables are not words
    assert counts.pop("docs/learn.md") <= MAX_COURSE_WORDS
    assert sum(counts.values()) <= MAX_WORDS, counts
    assert len((ROOT / "README.md").read_text().splitlines()) <= 130
    assert len((ROOT / "ARCHITECTURE.md").read_text().splitlines()) <= 300
    assert len((ROOT / "docs" / "performance.md").read_text().splitlines()) <= 150
