"""Reads the command lines of benchmarks: converters for argparse; an error is one line that says what was expected."""

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

FACTORS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def num_bytes(text: str) -> int:
    """Reads a size in whole float32 elements, such as 8, 64K, 1M or 2G."""
    factor = FACTORS.get(text[-1:].upper(), 1)
    digits = text if factor == 1 else text[:-1]
    if not digits.isdecimal() or int(digits) * factor % 4 or int(digits) == 0:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a positive multiple of 4 bytes, such as 8, 64K or 1M")
    return int(digits) * factor


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """Returns a reader of whole numbers."""
    limits = f"from {least} to {most}" if most is not None else f"of at least {least}"

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least or (most is not None and int(text) > most):
            raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number {limits}")
        return int(text)

    return read


def one_of(known: Sequence[str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in known:
            raise argparse.ArgumentTypeError(f"{text!r}: expected one of {', '.join(known)}")
        return text

    return read


def listed(read: Callable[[str], Any], least: int = 1) -> Callable[[str], list[Any]]:
    """Returns a reader of `least` or more values, separated by commas."""

    def read_all(text: str) -> list[Any]:
        words = [word for word in text.split(",") if word]
        if len(words) < least:
            raise argparse.ArgumentTypeError("expected values, separated by commas")
        return [read(word) for word in words]

    return read_all


def new_file(text: str) -> Path:
    """Returns a path that can be written; an error must come before hours of measuring."""
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written")
    return path


def picture(text: str) -> Path:
    """Returns a path to which matplotlib can write a picture."""
    path = new_file(text)
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError:
        raise argparse.ArgumentTypeError("needs matplotlib, the extra `plot`: pip install matplotlib") from None
    if path.suffix[1:].lower() not in (known := FigureCanvasAgg.get_supported_filetypes()):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a name that ends in one of {', '.join(known)}")
    return path
