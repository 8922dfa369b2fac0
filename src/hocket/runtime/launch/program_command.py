"""The command of a program as `hocket run` takes it: a Python file, `-m MODULE` or an executable of this host."""

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path


def command_of(program: Sequence[str]) -> list[str]:
    """Returns the command that runs the program with this interpreter, or as it is. OSError if there is no such file.

    An executable is found in PATH or, without ./ in front, in the working directory.
    """
    name = program[0]
    if name in ("-m", "-c"):
        return [sys.executable, *program]
    if name.endswith(".py"):
        if not Path(name).is_file():
            raise FileNotFoundError(2, "no such file", name)
        return [sys.executable, *program]
    file = Path(name)
    if not file.is_file() or shutil.which(name) is not None:
        return list(program)
    if not os.access(file, os.X_OK) and _is_python(file):
        return [sys.executable, *program]
    return [str(file.absolute()), *program[1:]]


def why_not_started(program: Sequence[str], error: OSError) -> tuple[str, int]:
    """Returns what to say of a program that cannot be started, and the exit code that a shell would give."""
    return (
        f"cannot start {program[0]!r}: {error.strerror}; expected a Python file, `-m MODULE` or an executable, "
        f"relative to {Path.cwd()}",
        127 if isinstance(error, FileNotFoundError) else 126,
    )


def _is_python(file: Path) -> bool:
    try:
        compile(file.read_bytes(), file, "exec")
    except (OSError, SyntaxError, ValueError):
        return False
    return True
