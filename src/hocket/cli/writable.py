"""Files that a command writes because it was asked to: where that cannot be done, what would do instead."""

import tempfile
from pathlib import Path

from hocket.view import saving


def check_cache() -> None:
    """ValueError if the folder cannot be written in which what was measured is kept; makes it."""
    from hocket.runtime import cache_folder

    try:
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        tempfile.TemporaryFile(dir=folder).close()
    except (OSError, RuntimeError) as error:  # RuntimeError: no home directory
        reason = f"{error.filename!r}: {error.strerror}" if isinstance(error, OSError) else str(error)
        raise ValueError(
            f"expected a cache folder that can be written, to keep what is measured; found {reason}; set HOCKET_CACHE"
        ) from None


def check_writable(file: str | Path) -> None:
    """ValueError if the file cannot be written; leaves nothing behind."""
    path = Path(file)
    new = not path.exists()
    with saving.writing(path):
        path.open("ab").close()
    if new:
        path.unlink()
