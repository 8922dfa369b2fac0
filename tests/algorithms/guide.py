"""Replays docs/algorithms.md in order: writes its programs, makes its changes, runs its commands.

A python block begins with `# FILE.py` and is that file. A diff block changes the last file. In a console block,
`$ COMMAND` is followed by the output of the command.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path


def replayed(document: str, folder: Path) -> str:
    """Returns the document with today's outputs of its commands, run in this empty folder; old measurements stay."""
    current = folder / "none.py"

    def replay(block: re.Match[str]) -> str:
        nonlocal current
        kind, text = block[1], block[2]
        if kind == "python":
            name = re.match(r"# (\w+\.py)\n", text)
            assert name is not None, f"expected `# FILE.py` in the first line of {text!r}"
            current = folder / name[1]
            current.write_text(text)
        elif kind == "diff":
            current.write_text(changed(current.read_text(), text))
        elif kind == "console":
            text = "".join(ran(one, folder) for one in re.split(r"^(?=\$ )", text, flags=re.MULTILINE) if one)
        return f"```{kind}\n{text}```\n"

    return re.sub(r"^```(\w+)\n(.*?)^```\n", replay, document, flags=re.MULTILINE | re.DOTALL)


def changed(program: str, difference: str) -> str:
    """Returns the program with each block of - lines replaced by the + lines after it."""
    for old, new in re.findall(r"((?:^-.*\n)+)((?:^\+.*\n)*)", difference, re.MULTILINE):
        before, after = (re.sub(r"^[-+]", "", lines, flags=re.MULTILINE) for lines in (old, new))
        assert program.count(before) == 1, f"expected {before!r} once in {program!r}"
        program = program.replace(before, after)
    return program


def ran(shown: str, folder: Path) -> str:
    """Returns a command and its output; the output that the document shows, if only times differ."""
    line = shown.partition("\n")[0]
    program, *arguments = shlex.split(line.removeprefix("$ "))
    measures = arguments[0] == "bench"
    command = {"hocket": [sys.executable, "-m", "hocket"], "python": [sys.executable]}[program] + arguments
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"COLUMNS": "100"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=60,
        check=False,
    )
    printed = f"{line}\n" + "".join(f"{one.rstrip()}\n" for one in done.stdout.splitlines())
    return shown if untimed(printed, measures) == untimed(shown, measures) else printed


def untimed(text: str, measures: bool) -> str:
    text = re.sub(r"in \d+\.\d s$", "in 0.0 s", text.rstrip(), flags=re.MULTILINE)
    # The first line names the machine; a star is where the fastest algorithm is clearly the fastest.
    return re.sub(r"^# hocket .*\n| +\d[\d.]*\*?", "", text, flags=re.MULTILINE) if measures else text
