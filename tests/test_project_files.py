"""Files that other programs read: versions stand in one place, workflows call what exists, pages load nothing."""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

import hocket
from docs.site.offline import check, loads

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_pre_commit_has_the_versions_of_make_check() -> None:
    pinned = dict(requirement.split("==") for requirement in PROJECT["optional-dependencies"]["check"])
    text = (ROOT / ".pre-commit-config.yaml").read_text()
    hooks = dict(re.findall(r"repo: \S+/(\S+)\n +rev: v(\S+)", text))
    assert hooks == {"ruff-pre-commit": pinned["ruff"], "mirrors-clang-format": pinned["clang-format"]}


def test_workflows_call_targets_that_exist() -> None:
    workflows = "\n".join(path.read_text() for path in (ROOT / ".github" / "workflows").iterdir())
    called = set(re.findall(r"run: make (\S+)", workflows))
    assert {"ci", "docs", "wheel"} <= called
    assert called <= set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_one_version() -> None:
    assert f"\nversion: {hocket.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {hocket.__version__} - " in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize(
    ("page", "found"),
    [
        ('<a href="https://pypi.org">a link that a reader may follow</a>', 0),
        ('<script src="_static/theme.js"></script><link rel="stylesheet" href="../a.css">', 0),
        ('<svg xmlns="http://www.w3.org/2000/svg"></svg>', 0),
        ('<script src="https://cdn.example/mathjax.js"></script>', 1),
        ('<link rel="stylesheet" href="//fonts.example/a.css"><img src="http://a.example/b.png">', 2),
        ('<p style="background: url(https://a.example/b.png)">', 1),
    ],
)
def test_loads_of_a_page(page: str, found: int) -> None:
    assert len(loads(page, ".html")) == found


def test_loads_of_a_style_sheet(tmp_path: Path) -> None:
    own = 'a { background: url("data:image/svg+xml;http://www.w3.org/2000/svg") } @import "b.css";'
    assert loads(own, ".css") == []
    (tmp_path / "a.css").write_text(f"{own} @import 'https://fonts.example/c.css';")
    (fault,) = check(tmp_path)
    assert fault == f"{tmp_path}/a.css: loads https://fonts.example/c.css from the network"


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def write(folder: Path, path: str, text: str) -> None:
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_text(text)


def tidied(folder: Path) -> set[str]:
    """Return the files that .ci/tidy hands to clang-tidy, here a program that only prints its last argument."""
    environment = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run([folder / ".ci/tidy"], env=environment, check=True, capture_output=True, text=True)
    files = [line for line in done.stdout.splitlines() if not line.startswith("clang-tidy: ")]
    return {file.removeprefix(f"{folder}/") for file in files}


def test_tidy_looks_at_changed_files_only(tmp_path: Path) -> None:
    write(tmp_path, "bin/clang-tidy", '#!/bin/sh\necho "$5"\n')
    includes = (
        f"a.o: #deps 2\n    {tmp_path}/csrc/a.cpp\n    {tmp_path}/csrc/a.h\n\nb.o: #deps 1\n    {tmp_path}/csrc/b.cpp\n"
    )
    write(tmp_path, "bin/ninja", f"#!/bin/sh\ncat <<EOF\n{includes}EOF\n")
    for program in ("clang-tidy", "ninja"):
        (tmp_path / "bin" / program).chmod(0o755)
    write(tmp_path, "build/cp311/compile_commands.json", "[]")
    write(tmp_path, ".gitignore", "/bin/\n/build/\n")
    (tmp_path / ".ci").mkdir()
    shutil.copy2(ROOT / ".ci" / "tidy", tmp_path / ".ci")
    assert tidied(tmp_path) == set()  # no git

    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    for name in ("a.cpp", "a.h", "b.cpp", "c.cpp"):
        write(tmp_path, f"csrc/{name}", "")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message=first")
    assert tidied(tmp_path) == set()  # no commit before

    write(tmp_path, "csrc/b.cpp", "// changed")
    write(tmp_path, "csrc/README.md", "")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message=second")
    assert tidied(tmp_path) == {"csrc/b.cpp"}
    write(tmp_path, "csrc/a.h", "// changed")
    write(tmp_path, "tests/core/new.h", "")
    (tmp_path / "csrc/c.cpp").unlink()
    expected = {"csrc/b.cpp", "csrc/a.cpp", "tests/core/new.h"}  # a.cpp includes a.h; no file includes new.h
    assert tidied(tmp_path) == expected  # committed or not

    git(tmp_path, "update-ref", "refs/remotes/origin/main", "HEAD~1")
    git(tmp_path, "commit", "--quiet", "--all", "--message=third")
    assert tidied(tmp_path) == expected  # since origin/main
