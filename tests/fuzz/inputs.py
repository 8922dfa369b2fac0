"""Inputs of fuzzing: the corpus, which is committed, and changes of bytes that come from a seeded generator.

A corpus is a text file: each line has one input in hexadecimal digits, and why it is there.
"""

from collections.abc import Sequence
from pathlib import Path
from random import Random

FOLDER = Path(__file__).parent / "corpus"
_MOST_CHANGES = 4
_MOST_BYTES = 4096  # of an input
_NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF)


def file_of(target: str) -> Path:
    """Return the file with the corpus of a target."""
    return FOLDER / f"{target}.txt"


def read(target: str) -> list[bytes]:
    """Return the corpus of a target."""
    lines = file_of(target).read_text().splitlines() if file_of(target).exists() else []
    return [bytes.fromhex(line.partition("#")[0]) for line in lines]


def add(target: str, data: bytes, why: str) -> None:
    """Add an input to the corpus of a target, unless it is there."""
    if data not in read(target):
        with file_of(target).open("a") as file:
            file.write(f"{data.hex()} # {why}\n")


def mutate(pool: Sequence[bytes], choose: Random) -> bytes:
    """Return an input of the pool with some changes: of bits, bytes and numbers, of length, or with a part of another
    one.
    """
    below = choose.random  # much faster than randrange()
    made = pool[int(below() * len(pool))]
    for _ in range(1 + int(below() * _MOST_CHANGES)):
        at = int(below() * (len(made) + 1))
        kind = int(below() * 8)
        if kind == 0 and at < len(made):
            made = made[:at] + bytes((made[at] ^ 1 << int(below() * 8),)) + made[at + 1 :]
        elif kind == 1:
            made = made[:at] + bytes((int(below() * 256),)) + made[at + 1 :]
        elif kind == 2:
            width = 1 << int(below() * 4)
            number = _NUMBERS[int(below() * len(_NUMBERS))] & (1 << 8 * width) - 1
            order = "little" if below() < 0.5 else "big"
            made = made[:at] + number.to_bytes(width, order) + made[at + width :]
        elif kind == 3:
            made = made[:at] + choose.randbytes(1 + int(below() * 8)) + made[at:]
        elif kind == 4:
            made = made[:at] + made[at + 1 + int(below() * 16) :]
        elif kind == 5:
            made = made[:at]
        elif kind == 6:
            other = pool[int(below() * len(pool))]
            first = int(below() * (len(other) + 1))
            made = made[:at] + other[first : first + 1 + int(below() * 64)] + made[at:]
        elif kind == 7:
            made = made[:at] + made[at : at + 8] * (1 + int(below() * 32)) + made[at:]
    return made[:_MOST_BYTES]
