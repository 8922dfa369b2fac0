"""What `hocket run` says of the ranks that failed: each error once, the cause last, and one line for all it stopped."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hocket.runtime.launch.tracebacks import (
    cause_in,
    compact,
    joined,
    message_of,
    place_in,
    reason_in,
    shortened,
    site_in,
)
from hocket.runtime.ranks.program_frames import debugging
from hocket.runtime.ranks.rank_names import name_ranks

_ADVICE = re.compile(r"\.? This communicator can only be closed\b.*$")
_LEFT = re.compile(r"\b(gave up: |left without |closed\b)")


@dataclass(frozen=True)
class FailedRanks:
    """The failures of a run of `num_ranks` ranks.

    tracebacks: those with which ranks ended; closing: the lines that ranks wrote as they closed; causes: the ranks that
    failed first, the one that ended first in front; following: the ranks that tell that another rank failed;
    suspects: the ranks whose calls differ from those of most, came late or ended early, as the ranks tell; ways: how
    each of the causes ended; places: what to say of the place of a rank, such as " on node1"; returned: the ranks that
    returned 0; label: whether the lines of a traceback name ranks.
    """

    num_ranks: int
    tracebacks: Mapping[int, str]
    closing: Mapping[int, str]
    causes: Sequence[int]
    following: Collection[int]
    suspects: Collection[int]
    ways: Mapping[int, str]
    places: Callable[[int], str]
    returned: Collection[int]
    label: bool

    def text(self) -> str:
        """Returns what to say, line by line: nothing depends on the order in which ranks with one error ended."""
        told = {reason_in(text) for text in self.tracebacks.values()} | {""}
        said = [
            line for _, line in joined({r: line for r, line in self.closing.items() if reason_in(line) not in told})
        ]
        stopped = self._stopped()
        own = {rank: shortened(text) for rank, text in sorted(self.tracebacks.items()) if rank not in stopped}
        found = joined(own)
        texts = {rank: text for ranks, text in found for rank in ranks}
        cause, alike = self._chosen(texts)
        main = texts.get(cause, "")
        shown = place_in(main)
        for ranks, text in found:
            if not main or cause_in(text) != cause_in(main):
                same = bool(main) and place_in(text) == shown
                said.append(
                    f"{name_ranks(ranks)}, at the same place: {message_of(text)}"
                    if same
                    else f"{name_ranks(ranks)}:\n{self._labelled(text, ranks)}"
                )
        if stopped:
            whose = name_ranks(alike if len(alike) > 1 else self.causes)
            said.append(f"hocket run: the failure of {whose} stopped {_with_sites(stopped)}")
        if self.causes:
            said.append(self._how(cause, alike, main, {rank: texts[rank] for rank in alike}, stopped))
            if main:
                said.append(self._labelled(main, next(ranks for ranks, _ in found if cause in ranks)))
        return "".join(f"{text}\n" for text in said)

    def _stopped(self) -> dict[int, str]:
        """Returns the tracebacks that only report the failure of another rank, if that of the cause says more."""
        if not self.causes or debugging() or self.causes[0] in self.following:
            return {}
        return {rank: text for rank, text in sorted(self.tracebacks.items()) if rank in self.following}

    def _chosen(self, texts: Mapping[int, str]) -> tuple[int, list[int]]:
        """Returns the rank whose traceback is told, and all ranks with the same error.

        Several ranks may have its error: then a suspect is told, or else the lowest rank. If they only have its place,
        the lowest is told.
        """
        cause = self.causes[0] if self.causes else -1
        if cause not in texts:
            return cause, []
        alike = sorted(rank for rank, text in texts.items() if cause_in(text) == cause_in(texts[cause]))
        if len(alike) == 1:
            beside = [rank for rank in self.causes if rank in texts and place_in(texts[rank]) == place_in(texts[cause])]
            return min(beside), [min(beside)]
        return min([rank for rank in alike if rank in self.suspects] or alike), alike

    def _how(
        self, cause: int, alike: Sequence[int], main: str, texts: Mapping[int, str], stopped: Mapping[int, str]
    ) -> str:
        """Returns how the cause ended, and where else its error came, or else why."""
        if len(alike) > 1:
            places = {self.places(rank) for rank in alike}
            place = places.pop() if len(places) == 1 else ""
            said = f"hocket run: {name_ranks(alike)} of {self.num_ranks} failed, {self.ways[self.causes[0]]}{place}"
            if len({site_in(text) for text in texts.values()}) > 1:
                said += f"; the same error: {_with_sites(texts)}"
        else:
            known = "failed first" if len(self.causes) == 1 else "failed, and none tells which was first"
            if self.causes and self.causes[0] in self.following:
                known = "failed because of another rank"
            if len(self.causes) > 1:
                known += f"; rank {self.causes[0]} ended first"
            way = self.ways[self.causes[0]] + self.places(self.causes[0])
            said = f"hocket run: {name_ranks(self.causes)} of {self.num_ranks} {known}, {way}"
        early = sorted(rank for rank in self.suspects if rank in self.returned)
        if early and set(self.causes) & set(self.following) and not _tells_why(main):  # that says more
            said += f"; {name_ranks(early)} ended before, with exit code 0"
        if main:
            return f"{said}:"
        reasons = {_ADVICE.sub("", reason_in(text)) for text in stopped.values() if _tells_why(text)}
        return f"{said}: {min(reasons).removeprefix(f'rank {cause} gave up: ')}" if reasons else said

    def _labelled(self, text: str, ranks: Iterable[int]) -> str:
        text = text if debugging() else compact(text)
        if not self.label:
            return text
        label = name_ranks(ranks).partition(" ")[2]
        return "\n".join(f"[{label}] {line}" for line in text.split("\n"))


def _with_sites(tracebacks: Mapping[int, str]) -> str:
    """Returns the ranks by the line of the program in which they were: "rank 1 (a.py:7), ranks 0, 2 (a.py:9)"."""
    by_site: dict[str, list[int]] = {}
    for rank, text in tracebacks.items():
        by_site.setdefault(site_in(text), []).append(rank)
    return ", ".join(name_ranks(ranks) + (f" ({site})" if site else "") for site, ranks in by_site.items())


def _tells_why(text: str) -> bool:
    """Returns whether a traceback tells that another rank gave up or closed."""
    return _LEFT.search(_ADVICE.sub("", message_of(text))) is not None
