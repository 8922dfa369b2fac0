"""Turns what the core reports into the classes of hocket.errors: all messages about its failures are written here."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any

from hocket.errors import (
    CollectiveMismatch,
    CollectiveTimeout,
    ForkedUse,
    HocketError,
    InternalError,
    PeerAborted,
    PeerDied,
    ResourceError,
)
from hocket.runtime.ranks.failure_reports import tell_heard
from hocket.runtime.ranks.program_frames import short_site
from hocket.runtime.ranks.rank_names import name_ranks
from hocket.runtime.vocabulary import DTYPES, KINDS, OPS

# The first field that differs is named: a difference in a later field may only follow from one in an earlier field.
_FIELDS = ("kind", "dtype", "op", "detail", "count", "root", "schedule")


class Cause(IntEnum):
    """Why the core gave up. A test compares names and numbers with the enum in csrc/base/error.h."""

    NONE = 0
    MISMATCH = 1
    TIMEOUT = 2
    DIED = 3
    ABORTED = 4
    FORKED = 5
    RESOURCE = 6
    INTERNAL = 7


_ADVICE = {
    "kind": "all ranks must call the same collectives in the same order",
    "count": "pass arrays of one length on all ranks",
    "dtype": "pass arrays of one dtype on all ranks",
    "detail": "values are digests of the factor, or of the function with its code, defaults, closure and state; pass "
    "the same on all ranks",
    "schedule": "pass the same algorithm= on all ranks, with the same content of its file",
}
_ONLY_CLOSE = "this communicator can only be closed"
# What csrc/control/members.cpp says of a rank whose host is gone, and, before the other rank, of a broken connection.
_CUT_OFF, _BROKEN = "cut off", "broken way to "


def exception_of(
    cause: int,
    rank: int,
    sequence: int,
    seconds: float,
    error_number: int,
    missing: Sequence[int],
    calls: Mapping[int, tuple[int, ...]],
    sites: Mapping[int, str],
    text: str,
    this_rank: int,
    label: str,
    hosts: Mapping[int, str] | None = None,
) -> HocketError:
    """Returns the exception for a failure of the core; the arguments are the fields of csrc/base/error.h.

    Ranks are those of the job, in the text and in the fields of the exception: the core has looked them up.
    """
    if len({call[:-1] for call in calls.values()}) != 1 or len(set(calls.values())) == 1:
        label = label.partition(" by ")[0]  # which algorithm runs says something only if it alone differs
    where = f"rank {this_rank}" + (
        f", {label} (call {sequence})" if label and sequence else f", {label}" if label else ""
    )
    where = where if this_rank >= 0 else "hocket"
    hosts = hosts or {}
    if cause in (Cause.DIED, Cause.ABORTED) and rank != this_rank:
        tell_heard()
    if cause == Cause.MISMATCH:
        return _mismatch(where, sequence, calls, sites, text) if sequence else _message_mismatch(where, calls, text)
    if cause == Cause.TIMEOUT:
        ranks = _with_host(missing, hosts) if missing else "its peers"
        is_one = len(missing) == 1
        late = this_rank if rank < 0 else rank
        what = "not done" if late == this_rank else f"rank {rank} was not done"
        what, found = f"{what} within {seconds:g} s", f"it waited for {ranks}"
        if calls:  # of those that have come
            late = min(missing, default=late)
            what, found = f"{ranks} {'has' if is_one else 'have'} not come within {seconds:g} s", ""
        advice = f"see what {'it does' if is_one else 'they do'} instead, or pass a longer timeout="
        why = text or (f"{found}. {advice.capitalize()}" if found else advice)
        return CollectiveTimeout(
            f"{where}: {what}; {why}. {_ONLY_CLOSE.capitalize()}",
            missing=missing,
            seconds=seconds,
            sequence=sequence,
            late=late,
        )
    if cause == Cause.DIED:
        named = _with_host([rank], hosts)
        found = f"the process of {named} ended; see its output"
        if text == _CUT_OFF:
            found = f"{named} cannot be reached any more: its host, or the way there, is down, or its leader has ended"
        if text.startswith(_BROKEN):
            other = text.removeprefix(_BROKEN)
            found = (
                f"{named} cannot be reached any more: its connection with {other} broke, so bytes are lost; see "
                "whether a firewall or a proxy between their hosts ends connections"
            )
        return PeerDied(f"{where}: {found}. {_ONLY_CLOSE.capitalize()}", rank=rank)
    if cause == Cause.ABORTED and missing:
        own = f"rank {this_rank} is in {label}"
        needed = f" before that{text.removeprefix(own)}" if label and text.startswith(own) else f", but {text}"
        left = _left(sequence, missing, calls, sites, needed, this_rank)
        return PeerAborted(
            f"{where}: {left} {_ONLY_CLOSE.capitalize()}", rank=rank, reason="it closed its communicator"
        )
    if cause == Cause.ABORTED:
        who = _with_host([rank], hosts) if rank != this_rank else "this rank itself"
        why = text or "without a reason"
        why += "" if why.endswith("?") else "."
        return PeerAborted(f"{where}: {who} gave up: {why} {_ONLY_CLOSE.capitalize()}", rank=rank, reason=text)
    if cause == Cause.FORKED:
        return ForkedUse(
            "a communicator or a stream belongs to the process that made it, and this process is a forked child; call "
            "hocket.init in the child, or make another stream"
        )
    if cause == Cause.RESOURCE:
        return ResourceError(
            f"{where}: {text} failed: {os.strerror(error_number)}; see `hocket doctor`", errno=error_number, call=text
        )
    return InternalError(f"{where}: {text}")


def _with_host(ranks: Sequence[int], hosts: Mapping[int, str]) -> str:
    """Returns the ranks in words, with their host if they are all on one of several."""
    named = {hosts.get(rank, "") for rank in ranks}
    host = named.pop() if len(named) == 1 else ""
    return name_ranks(ranks) + (f" on {host}" if host else "")


def _left(
    sequence: int,
    missing: Sequence[int],
    calls: Mapping[int, tuple[int, ...]],
    sites: Mapping[int, str],
    needed: str,
    this_rank: int,
) -> str:
    """Returns what to say of ranks that closed their communicator while other ranks, those of `calls`, needed them.

    needed: what for, in words, if there are no `calls`.
    """
    if this_rank in missing:
        return "this rank itself has closed its communicator; close it after its last call on any thread."
    if not calls:
        return f"{name_ranks(missing)} closed the communicator{needed}" + ("" if needed.endswith("?") else ".")
    kind = _value("kind", dict(zip(_FIELDS, next(iter(calls.values())), strict=True)))
    inside = ", ".join(_at(ranks, site) for site, ranks in _by(calls, lambda rank: sites.get(rank, "")))
    if len(calls) < len(missing):
        verb = "has" if len(calls) == 1 else "have"
        return (
            f"{inside} {verb} made one call more than {name_ranks(missing)}, which closed: {kind} (call {sequence}); "
            "does every rank call it?"
        )
    verb = "is" if len(calls) == 1 else "are"
    return (
        f"{name_ranks(missing)} left without {kind} (call {sequence}), which {inside} {verb} in: does every rank call "
        "it?"
    )


def _by(ranks: Iterable[int], key: Callable[[int], Any]) -> Iterable[tuple[Any, list[int]]]:
    """Returns the ranks by what `key` says of them, in the order of the first ones."""
    found: dict[Any, list[int]] = {}
    for rank in sorted(ranks):
        found.setdefault(key(rank), []).append(rank)
    return found.items()


def _at(ranks: Sequence[int], site: str) -> str:
    return name_ranks(ranks) + (f" ({short_site(site)})" if site else "")


def _mismatch(
    where: str, sequence: int, calls: Mapping[int, tuple[int, ...]], sites: Mapping[int, str], of: str
) -> CollectiveMismatch:
    """Returns the error for ranks whose calls differ; `of` names the part that differs if it is not the whole call."""
    by_rank = {rank: dict(zip(_FIELDS, call, strict=True)) for rank, call in sorted(calls.items())}
    differs = next(
        (name for name in _FIELDS if len({call[name] for call in by_rank.values()}) > 1),
        "kind",
    )
    values = {rank: _value(differs, call) for rank, call in by_rank.items()}
    field = "op" if differs == "detail" else differs
    shown, said = values, field
    if differs == "schedule":  # known by digest; a rank knows the name of its own only, which `where` says
        first = next(iter(values.values()))
        shown, said = {rank: "one" if value == first else "another" for rank, value in values.items()}, "algorithm"
    places = {short_site(sites[rank]) for rank in values if rank in sites}
    everywhere = f" at {places.pop()}" if len(places) == 1 and values.keys() <= sites.keys() else ""
    sides = "; ".join(
        f"{value} on {_at(ranks, '' if everywhere else site)}"
        for (value, site), ranks in _by(values, lambda rank: (shown[rank], sites.get(rank, "")))
    )
    kinds = sorted({_value("kind", call) for call in by_rank.values()})
    advice = "pass the same count on both" if of else _ADVICE.get(differs, f"pass the same {field} on all ranks")
    if kinds == ["all_to_all", "all_to_all_v"]:
        advice = "pass counts (such as the split sizes of all_to_all_single) on all ranks or on none"
    elif set(kinds) <= {"scatter", "scatter_v"} and "scatter" in kinds and differs != "root":
        advice = "pass out= on all ranks or on none, of the length and type of a rank's part"
    what = "called different collectives" if differs == "kind" else f"differ in {said}{' ' + of if of else ''}"
    return CollectiveMismatch(
        f"{where}: the ranks {what} at call {sequence} "
        f"({' against '.join(kinds)}{everywhere}): {sides}; {advice}. {_ONLY_CLOSE.capitalize()}",
        field=field,
        values=values,
        sequence=sequence,
    )


def _message_mismatch(where: str, calls: Mapping[int, tuple[int, ...]], message: str) -> CollectiveMismatch:
    """Returns the error for a send and a receive that differ; reported by the receiver (csrc/messages/match.cpp)."""
    [(receiver, (_, dtype, sent_dtype, _, count, sender, sent_count))] = calls.items()
    field, sent, expected = (
        ("count", sent_count, count) if dtype == sent_dtype else ("dtype", DTYPES[sent_dtype], DTYPES[dtype])
    )
    unit = f" elements of {DTYPES[dtype]}" if field == "count" else ""
    return CollectiveMismatch(
        f"{where}: {message} from rank {sender} to rank {receiver} differs in {field} from the receive that it meets: "
        f"rank {sender} sends {sent}{unit}, rank {receiver} expects {expected}; pass arrays of one length and dtype to "
        f"both. {_ONLY_CLOSE.capitalize()}",
        field=field,
        values={sender: sent, receiver: expected},
        sequence=0,
    )


def _value(field: str, call: Mapping[str, int]) -> Any:
    number = call[field]
    if field == "detail":
        return f"{_value('op', call)} {number:016x}"
    names = {"kind": KINDS, "dtype": DTYPES, "op": OPS}.get(field)
    if names is not None:
        return names[number] if 0 <= number < len(names) else number
    return f"{number:016x}" if field == "schedule" else number
