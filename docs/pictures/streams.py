"""Draws what examples/streams.py does, as it was traced: the pictures of docs/streams.md."""

import subprocess
import sys
import tempfile
from pathlib import Path

PICTURES = Path(__file__).parent
EXAMPLE = PICTURES.parents[1] / "examples" / "streams.py"


def main() -> None:
    """Runs the example once."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, EXAMPLE, "--traces", folder], check=True)
        for trace in sorted(Path(folder).glob("*.json")):
            picture = PICTURES / f"streams-{trace.stem}.svg"
            subprocess.run([sys.executable, "-m", "hocket", "trace", "plot", trace, "-o", picture], check=True)


if __name__ == "__main__":
    main()
