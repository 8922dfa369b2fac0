"""Files that a command writes because it was asked to: where that cannot be done, what would do instead."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write(file: str | Path, text: str, *, new: bool = False) -> None:
    """Writes text; a file that is there is overwritten, or if it has to be new, stays. ValueError if it cannot be."""
    with writing(file):
        try:
            with Path(file).open("x" if new else "w", encoding="utf-8") as opened:
                opened.write(text)
        except FileExistsError:
            raise ValueError(f"expected a file that does not exist yet; found {file}, which stays as it is") from None


@contextmanager
def writing(file: str | Path) -> Iterator[None]:
    """Around what writes the file: ValueError where that cannot be."""
    try:
        yield
    except FileNotFoundError:
        raise ValueError(f"expected a folder that exists, for {file}; found none; make it first") from None
    except OSError as error:
        found = f"{str(file)!r}: {error.strerror}"
        raise ValueError(f"expected a file that can be written; found {found}; name another") from None


def check_cache() -> None:
    """ValueError if the folder cannot be written in which what was measured is kept; makes it."""
    from hocket.runtime.plans import cache_folder

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
    with writing(path):
        path.open("ab").close()
    if new:
        path.unlink()
