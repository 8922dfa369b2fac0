"""Writes files that the user asked for; if one cannot be written, the error suggests what to do."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write(file: str | Path, text: str, *, new: bool = False) -> None:
    """Writes text to a file and overwrites an old one. Raises ValueError on failure, and if new=True and it exists."""
    with writing(file):
        try:
            with Path(file).open("x" if new else "w", encoding="utf-8") as opened:
                opened.write(text)
        except FileExistsError:
            raise ValueError(f"expected a file that does not exist yet; found {file}, which was not changed") from None


@contextmanager
def writing(file: str | Path) -> Iterator[None]:
    """Turns an OSError of the code that writes the file into a ValueError."""
    try:
        yield
    except FileNotFoundError:
        raise ValueError(f"expected an existing folder for {file}; found none; create it first") from None
    except OSError as error:
        found = f"{str(file)!r}: {error.strerror}"
        raise ValueError(f"expected a writable file; found {found}; choose another") from None
