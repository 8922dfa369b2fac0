"""Files that somebody asked for: where one cannot be written, what would do instead."""

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
