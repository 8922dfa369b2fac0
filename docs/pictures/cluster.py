"""Draws the picture of a simulated cluster in README.md: runs the command that stands below it."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMAND = re.compile(r"`hocket (simulate [^`]* --plot docs/pictures/cluster)`")


def main() -> None:
    """Runs it once."""
    command = COMMAND.search((ROOT / "README.md").read_text())
    assert command is not None, "README.md no longer says how its picture was drawn"
    words = [sys.executable, "-m", "hocket", *shlex.split(command[1])]
    subprocess.run(words, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)


if __name__ == "__main__":
    main()
