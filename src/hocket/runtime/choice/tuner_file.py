"""Tuner files: which algorithm for which sizes, in the CSV format of NCCL's example tuner, read and written.

A line is `collective,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks[,numPipeOps,regBuff]`; -1 stands for
any, `#` begins a comment, and the first line that matches a call decides. NCCL's names are understood and written where
NCCL has its own. Protocol, channels, numPipeOps and regBuff mean nothing here: they are kept as read.
"""

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hocket.runtime.choice.spelling import (
    algorithm_in_nccl,
    algorithm_names,
    collective_in_nccl,
    find_algorithm_name,
    find_collective_name,
    is_algorithm_of_nccl,
)
from hocket.schedule import COLLECTIVES

DEFAULT_FILE = "hocket_tuner.conf"
VARIABLE = "HOCKET_TUNER_CONFIG_FILE"

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
# Short lines: NCCL's example tuner reads 255 characters at once, and takes what follows for another line.
_HEADER = f"""\
# Tuner file of Hocket, in the CSV format of NCCL's example tuner. The first line that matches a call decides.
# {",".join(_FIELDS)}
# Sizes are bytes of the whole vector; -1: any. Hocket does not use protocol, channels, numPipeOps and regBuff.
# NCCL knows broadcast, reduce, allgather, reducescatter and allreduce, by tree and ring. Its example tuner takes any
# other name for allreduce or ring: keep lines with such names from it.
"""


@dataclass(frozen=True)
class Rule:
    """From min_bytes to max_bytes of the whole vector, both included, this algorithm; -1 stands for any.

    protocol, channels, num_pipe_ops and registered_buffers are NCCL's, kept as read.
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
        """Whether the rule is about such a call."""
        return (
            self.collective == collective
            and self.min_bytes <= num_bytes
            and (self.max_bytes == -1 or num_bytes <= self.max_bytes)
            and self.num_nodes in (-1, num_nodes)
            and self.num_ranks in (-1, num_ranks)
        )


def read_configured(environ: Mapping[str, str]) -> tuple[Rule, ...]:
    """The rules of the file that HOCKET_TUNER_CONFIG_FILE names (empty: of none), else of hocket_tuner.conf here.

    ValueError if the file that is named is missing, or cannot be understood.
    """
    named = environ.get(VARIABLE)
    if named is None:
        return read(DEFAULT_FILE) if Path(DEFAULT_FILE).is_file() else ()
    if named and not Path(named).is_file():
        raise ValueError(f"{VARIABLE}: expected a tuner file, found no file {named!r}; correct the path, or unset it")
    return read(named) if named else ()


def read(path: str | Path) -> tuple[Rule, ...]:
    """The rules of a file, in its order. ValueError names file, line and field.

    A line about an algorithm that NCCL has and Hocket has not is left out; one warning on standard error tells of them.
    """
    rules, left_out = [], list[str]()
    for number, (_, rule) in enumerate(_lines(path, _text(path)), start=1):
        if isinstance(rule, Rule):
            rules.append(rule)
        elif rule is not None:
            left_out.append(f"line {number} ({rule})")
    if left_out:
        what = "algorithms that NCCL has and Hocket has not"
        print(f"hocket: {path}: left out, for {what}: {', '.join(left_out)}", file=sys.stderr)
    return tuple(rules)


def write(path: str | Path, rules: Iterable[Rule]) -> None:
    """Writes a file that `read`, and NCCL's example tuner as far as it has the names, reads back as these rules."""
    _write(path, _written(rules))


def update(path: str | Path, rules: Iterable[Rule], about: Collection[tuple[str, int]]) -> list[Rule]:
    """Writes rules in the place of those of a file about these collectives and rank counts; it need not be there.

    The new ones stand first, as the first that matches decides. All other lines stay as they are, whether they say
    something or not. Returns the rules that stayed. ValueError, as by `read`, if the file cannot be understood.
    """
    text = _text(path).removeprefix(f"{_HEADER}\n") if Path(path).is_file() else ""
    stay = [
        (line, rule)
        for line, rule in _lines(path, text)
        if not (isinstance(rule, Rule) and (rule.collective, rule.num_ranks) in about)
    ]
    _write(path, [*_written(rules), *(line for line, _ in stay)])
    return [rule for _, rule in stay if isinstance(rule, Rule)]


def _text(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected a tuner file in UTF-8, found {error.reason}") from None


def _lines(path: str | Path, text: str) -> Iterator[tuple[str, "Rule | str | None"]]:
    """Each line, and its rule; for an algorithm that only NCCL has words about it, None where a line says nothing."""
    for number, line in enumerate(text.splitlines(), start=1):
        said = line.partition("#")[0].strip()
        yield line, _Line(f"{path}, line {number}", said).rule() if said else None


def _written(rules: Iterable[Rule]) -> list[str]:
    return [
        ",".join(
            str(field)
            for field in (
                collective_in_nccl(rule.collective),
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
    """One line that is no comment, and where it is."""

    def __init__(self, place: str, text: str) -> None:
        self.place = place
        self.fields = [field.strip() for field in text.split(",")]

    def rule(self) -> Rule | str:
        """What the line says; for an algorithm that only NCCL has, its name and collective in words."""
        if not _NUM_REQUIRED <= len(self.fields) <= len(_FIELDS):
            raise ValueError(
                f"{self.place}: expected {_NUM_REQUIRED} to {len(_FIELDS)} fields, {','.join(_FIELDS)}; "
                f"found {len(self.fields)} in {','.join(self.fields)!r}"
            )
        collective = find_collective_name(self.fields[0])
        if collective is None:
            raise self._wrong(0, f"one of {', '.join(map(collective_in_nccl, COLLECTIVES))}")
        min_bytes, max_bytes = self._number(1, 0), self._number(2, -1)
        if max_bytes != -1 and max_bytes < min_bytes:
            raise self._wrong(2, f"-1 or at least min_bytes, {min_bytes}")
        algorithm = find_algorithm_name(self.fields[3], collective)
        if algorithm is None and not is_algorithm_of_nccl(self.fields[3]):
            raise self._wrong(
                3, f"an algorithm for {collective}, one of {', '.join(sorted(algorithm_names(collective)))}"
            )
        protocol = self.fields[4].lower()
        if protocol not in _PROTOCOLS:
            raise self._wrong(4, f"one of {', '.join(_PROTOCOLS)}")
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
        """A field as a number; one that may be left out at the end is -1."""
        if index >= len(self.fields):
            return -1
        text = self.fields[index]
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdecimal()) or int(text) < least:
            raise self._wrong(index, f"a number from {least} on")
        return int(text)

    def _wrong(self, index: int, expected: str) -> ValueError:
        return ValueError(f"{self.place}: {_FIELDS[index]}: expected {expected}; found {self.fields[index]!r}")
