"""Checks that the files a command will write can be written, and says which were; errors suggest what to do instead."""

import tempfile
from pathlib import Path

from hocket.view import saving


def check_cache() -> None:
    """Creates the cache folder for measurements. Raises ValueError if it cannot be written."""
    from hocket.runtime import cache_folder

    try:
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        tempfile.TemporaryFile(dir=folder).close()
    except (OSError, RuntimeError) as error:  # RuntimeError: no home directory
        reason = f"{error.filename!r}: {error.strerror}" if isinstance(error, OSError) else str(error)
        raise ValueError(
            f"expected a writable cache folder for the measurements; found {reason}; set HOCKET_CACHE"
        ) from None


def say_written(*files: str | Path) -> None:
    """Says on standard error which files were written."""
    from hocket.view import print_aside

    for file in files:
        print_aside(f"wrote {file}")


def check_writable(file: str | Path) -> None:
    """Raises ValueError if the file cannot be written. Leaves no new file behind."""
    path = Path(file)
    new = not path.exists()
    with saving.writing(path):
        path.open("ab").close()
    if new:
        path.unlink()
