"""Tuner files: which algorithm for which sizes. Reads and writes the CSV format of NCCL's example tuner.

A line is `collective,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks[,numPipeOps,regBuff]`; -1 means any,
`#` begins a comment, and the first line that matches a call decides. NCCL's names are read, and written if NCCL has
one. Hocket ignores protocol, channels, numPipeOps and regBuff, and keeps them as read.
"""

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hocket.errors import did_you_mean
from hocket.runtime.choice.spelling import (
    algorithm_in_nccl,
    algorithm_names,
    find_algorithm_name,
    is_algorithm_of_nccl,
)
from hocket.runtime.variables import TUNER_CONFIG_FILE
from hocket.schedule import COLLECTIVES, find_collective_name, plain_spelling

DEFAULT_FILE = "hocket_tuner.conf"

_FIELDS = (
    "collective",
    "min_bytes",
    "max_bytes",
    "algorithm",
    "protocol",
    "channels",
    "nNodes",
    "nRanks",
    "numPipeOps",
    "regBuff",
)
_NUM_REQUIRED = 8
_PROTOCOLS = ("ll", "ll128", "simple")
# Lines must be short: NCCL's example tuner reads 255 characters at once, and treats the rest as another line.
_HEADER = f"""\
# Tuner file of Hocket, in the CSV format of NCCL's example tuner. The first line that matches a call decides.
# {",".join(_FIELDS)}
# Sizes are bytes of the whole vector; -1: any. Hocket does not use protocol, channels, numPipeOps and regBuff.
# NCCL knows broadcast, reduce, allgather, reducescatter and allreduce, by tree and ring. Its example tuner reads any
# other name as allreduce or ring: do not give it lines with other names.
"""


@dataclass(frozen=True)
class Rule:
    """One line: the algorithm from min_bytes to max_bytes of the whole vector, both included; -1 means any.

    protocol, channels, num_pipe_ops and registered_buffers belong to NCCL and are kept as read.
    """

    collective: str
    min_bytes: int
    max_bytes: int
    algorithm: str
    num_nodes: int = -1
    num_ranks: int = -1
    protocol: str = "simple"
    channels: int = -1
    num_pipe_ops: int = -1
    registered_buffers: int = -1

    def matches(self, collective: str, num_ranks: int, num_bytes: int, num_nodes: int = 1) -> bool:
        """Returns whether the rule applies to such a call."""
        return (
            self.collective == collective
            and self.min_bytes <= num_bytes
            and (self.max_bytes == -1 or num_bytes <= self.max_bytes)
            and self.num_nodes in (-1, num_nodes)
            and self.num_ranks in (-1, num_ranks)
        )


def read_configured(environ: Mapping[str, str]) -> tuple[Rule, ...]:
    """Returns the rules of the file that HOCKET_TUNER_CONFIG_FILE names, else of hocket_tuner.conf in this folder.

    If the variable is empty, no file is read. Raises ValueError if the named file is missing, or if a file has errors.
    """
    named = environ.get(TUNER_CONFIG_FILE)
    if named is None:
        return read(DEFAULT_FILE) if Path(DEFAULT_FILE).is_file() else ()
    if named and not Path(named).is_file():
        raise ValueError(
            f"{TUNER_CONFIG_FILE}: expected a tuner file, found no file {named!r}; correct the path, or unset it"
        )
    return read(named) if named else ()


def read(path: str | Path) -> tuple[Rule, ...]:
    """Returns the rules of a file, in its order. Raises ValueError, which names file, line and field.

    Lines with algorithms that only NCCL has are left out; one warning on standard error lists them.
    """
    rules, left_out = [], list[str]()
    for number, (_, rule) in enumerate(_lines(path, _text(path)), start=1):
        if isinstance(rule, Rule):
            rules.append(rule)
        elif rule is not None:
            left_out.append(f"line {number} ({rule})")
    if left_out:
        what = "algorithms that only NCCL has"
        print(f"hocket: {path}: left out lines with {what}: {', '.join(left_out)}", file=sys.stderr)
    return tuple(rules)


def write(path: str | Path, rules: Iterable[Rule]) -> None:
    """Writes a file from which `read` returns these rules; NCCL's example tuner reads the lines whose names it has."""
    _write(path, _written(rules))


def update(path: str | Path, rules: Iterable[Rule], about: Collection[tuple[str, int]]) -> list[Rule]:
    """Replaces the rules of a file for these collectives and rank counts on one host; makes it if it does not exist.

    The new rules come first, because the first match decides. All other lines, comments and those for several hosts
    included, stay as they are.
    Returns the rules that stay. Raises ValueError as `read` does.
    """
    text = _text(path).removeprefix(f"{_HEADER}\n") if Path(path).is_file() else ""
    stay = [
        (line, rule)
        for line, rule in _lines(path, text)
        if not (isinstance(rule, Rule) and (rule.collective, rule.num_ranks) in about and rule.num_nodes in (-1, 1))
    ]
    _write(path, [*_written(rules), *(line for line, _ in stay)])
    return [rule for _, rule in stay if isinstance(rule, Rule)]


def _text(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected a tuner file in UTF-8, found {error.reason}") from None


def _lines(path: str | Path, text: str) -> Iterator[tuple[str, "Rule | str | None"]]:
    """Yields each line with its rule; a text for an algorithm that only NCCL has; None for a line without a rule."""
    for number, line in enumerate(text.splitlines(), start=1):
        said = line.partition("#")[0].strip()
        yield line, _Line(f"{path}, line {number}", said).rule() if said else None


def _written(rules: Iterable[Rule]) -> list[str]:
    return [
        ",".join(
            str(field)
            for field in (
                plain_spelling(rule.collective),
                rule.min_bytes,
                rule.max_bytes,
                algorithm_in_nccl(rule.collective, rule.algorithm),
                rule.protocol,
                rule.channels,
                rule.num_nodes,
                rule.num_ranks,
                rule.num_pipe_ops,
                rule.registered_buffers,
            )
        )
        for rule in rules
    ]


def _write(path: str | Path, lines: Sequence[str]) -> None:
    Path(path).write_text("\n".join([_HEADER, *lines, ""]), encoding="utf-8")


class _Line:
    """One line that is no comment, and its position."""

    def __init__(self, where: str, text: str) -> None:
        self.where = where
        self.fields = [field.strip() for field in text.split(",")]

    def rule(self) -> Rule | str:
        """Returns the rule of the line; for an algorithm that only NCCL has, a text with its name and collective."""
        if not _NUM_REQUIRED <= len(self.fields) <= len(_FIELDS):
            raise ValueError(
                f"{self.where}: expected {_NUM_REQUIRED} to {len(_FIELDS)} fields, {','.join(_FIELDS)}; "
                f"found {len(self.fields)} in {','.join(self.fields)!r}"
            )
        collective = find_collective_name(self.fields[0])
        if collective is None:
            raise self._wrong_name(0, "one", map(plain_spelling, COLLECTIVES))
        min_bytes, max_bytes = self._number(1, 0), self._number(2, -1)
        if max_bytes != -1 and max_bytes < min_bytes:
            raise self._wrong(2, f"-1 or at least min_bytes, {min_bytes}")
        algorithm = find_algorithm_name(self.fields[3], collective)
        if algorithm is None and not is_algorithm_of_nccl(self.fields[3]):
            raise self._wrong_name(3, f"an algorithm for {collective}, one", sorted(algorithm_names(collective)))
        protocol = self.fields[4].lower()
        if protocol not in _PROTOCOLS:
            raise self._wrong_name(4, "one", _PROTOCOLS)
        channels, num_nodes, num_ranks = (self._number(index, -1) for index in (5, 6, 7))
        num_pipe_ops, registered_buffers = self._number(8, -1), self._number(9, -1)
        if algorithm is None:
            return f"{self.fields[3]} for {collective}"
        return Rule(
            collective,
            min_bytes,
            max_bytes,
            algorithm,
            num_nodes,
            num_ranks,
            protocol,
            channels,
            num_pipe_ops,
            registered_buffers,
        )

    def _number(self, index: int, least: int) -> int:
        """Returns a field as a number; an omitted optional field is -1."""
        if index >= len(self.fields):
            return -1
        text = self.fields[index]
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdecimal()) or int(text) < least:
            raise self._wrong(index, f"a number of at least {least}")
        return int(text)

    def _wrong_name(self, index: int, expected: str, names: Iterable[str]) -> ValueError:
        there = list(names)
        return self._wrong(index, f"{expected} of {', '.join(there)}", did_you_mean(self.fields[index], there))

    def _wrong(self, index: int, expected: str, near: str = "") -> ValueError:
        return ValueError(f"{self.where}: {_FIELDS[index]}: expected {expected}; found {self.fields[index]!r}{near}")
