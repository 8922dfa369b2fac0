"""Runs the commands of docs/learn.md in one folder, and keeps the pictures that they make and the page shows.

python docs/pictures/learn.py
"""

import contextlib
import io
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hocket.cli import main as run_hocket

PAGE = Path(__file__).parents[1] / "learn.md"
PICTURES = Path(__file__).parent / "learn"
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHOWN = re.compile(r"\(pictures/learn/([\w.-]+)\)")


def sessions(text: str, folder: Path) -> Iterator[tuple[str, str, str]]:
    """Runs each command of the page in `folder`, and yields it with what the page says and what it prints."""
    for kind, block in BLOCK.findall(text):
        if kind == "python":  # its first line names its file
            (folder / block.partition("\n")[0].removeprefix("# ")).write_text(block)
            continue
        for session in block.removeprefix("$ ").split("\n$ "):
            command, _, said = session.partition("\n")
            yield command, said, run(command, folder)


def run(command: str, folder: Path) -> str:
    """What a command prints. Raises RuntimeError if it fails."""
    program, *words = shlex.split(command)
    if program == "python":
        return subprocess.run(
            [sys.executable, *words], cwd=folder, stdout=subprocess.PIPE, text=True, check=True
        ).stdout
    printed = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(printed):
        code = run_hocket(words)
    if code:
        raise RuntimeError(f"expected exit code 0 of `{command}`, found {code}")
    return printed.getvalue()


def agrees(said: str, printed: str) -> bool:
    """Whether the page says what is printed. A line "..." stands for any lines, "..." in a line for the rest of it.

    If the page says nothing, it agrees with everything. Blanks at the end of a line do not count.
    """
    pattern = ""
    for line in said.splitlines():
        words = r".*".join(map(re.escape, line.split("...")))
        pattern += r"(?:.*\n)*?" if line == "..." else rf"{words} *\n"
    return not said or re.fullmatch(pattern, printed) is not None


def main() -> None:
    """Draws all pictures of the page, and removes all others."""
    text = PAGE.read_text()
    with tempfile.TemporaryDirectory() as folder:
        for command, said, printed in sessions(text, Path(folder)):
            if not agrees(said, printed):
                raise RuntimeError(f"`{command}` printed\n{printed}\nwhere the page says\n{said}")
        shutil.rmtree(PICTURES, ignore_errors=True)
        PICTURES.mkdir()
        for name in SHOWN.findall(text):
            shutil.copyfile(Path(folder) / name, PICTURES / name)


if __name__ == "__main__":
    main()
