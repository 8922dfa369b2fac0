"""Turns the records of a rank into the events of a trace file.

In the trace, a rank is a process. Its lanes, in this order: threads of the program; streams; then for each communicator
its collectives, its messages and, if requested, the steps of its schedules. Categories ("cat"):

- communication: a collective, from its begin to its end on this rank; a message, from its launch or, if a stream comes
  before it, from the moment when the stream has reached it;
- blocking: a call that waits for its own operation; launch: a call that does not; wait: for a launched operation;
- compute: a span of the program, or an item of a stream; step: bytes that an instruction of a plan moves;
- event (a moment): what a thread does to an event, or that a stream has reached one.

Arrows go from launch to execution, and from sender to receiver.
"""

from array import array
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from hocket import _core
from hocket.runtime.traces import trace_file
from hocket.runtime.traces.trace_file import Event
from hocket.runtime.vocabulary import DTYPES, OPS
from hocket.schedule import ITEM_BYTES

_RECORD = np.dtype(
    {
        "names": [name for name, _, _ in _core.Recorder.fields],
        "formats": [kind for _, kind, _ in _core.Recorder.fields],
        "offsets": [offset for _, _, offset in _core.Recorder.fields],
        "itemsize": _core.Recorder.record_bytes,
    }
)
# Record::What and its flags, in csrc/trace/trace.h.
_COLLECTIVE, _MESSAGE, _BLOCKING, _LAUNCH, _WAIT, _SPAN, _MOVE, _INSTANT = range(8)
_FAILED, _SENDS, _FOLDS, _COMPLETES, _CONTINUES, _OF_STREAM = 1, 2, 4, 8, 16, 32
_THREAD, _COMMUNICATOR, _STREAM = range(3)

_LANES = 1 << 12  # lanes of the trace for each lane of the recorder: messages and steps have their own
_FIRST_STEP = 1 << 8
_LAST_ID = (1 << 53) - 1  # the largest integer of readers in JavaScript

_AT_ONCE = 1024  # records that are Python objects at the same time: there may be millions
_ARROWS = ("launch", "message", "piece")


class Events:
    """The events of one rank's trace, made one by one during iteration."""

    def __init__(self, rank: int, records: npt.NDArray[np.uint8], lanes: list[Any], names: list[str]) -> None:
        self.rank, self._lanes, self._names = rank, lanes, names
        self._records = records.view(_RECORD)
        # Ends of arrows, four numbers each: 2 * index in _ARROWS (+ 1 at the beginning of an arrow), key, lane, time.
        self._ends = array("q")
        self._num_arrows = 0
        self._used: dict[int, str] = {}  # names of the lanes of the trace
        self._titles = self._name_lanes()

    def __iter__(self) -> Iterator[Event]:
        """Yields slices by their begin; then arrows, whose ends readers look up in the slices; then names of lanes."""
        table = self._records[np.argsort(self._records["begin"], kind="stable")]
        names = table.dtype.names or ()
        self._message_lanes = self._pack_messages(table)
        made = (
            self._collective, self._message, self._blocking, self._launch, self._wait, self._span, self._move,
            self._instant,
        )  # fmt: skip
        for first in range(0, len(table), _AT_ONCE):
            columns = [table[name][first : first + _AT_ONCE].tolist() for name in names]
            for number, values in enumerate(zip(*columns, strict=True), first):
                record = dict(zip(names, values, strict=True))
                record["number"] = number
                yield from made[record["what"]](record)
        yield from self._arrows()
        yield from self._lane_names()

    def communicators(self) -> dict[str, list[int]]:
        """Returns, for each communicator in use, its ranks in the job; the key is the text in its events."""
        return {
            self._identity(lane): self._lanes[lane][3]
            for lane in range(len(self._lanes))
            if self._lanes[lane][0] == _COMMUNICATOR
        }

    # Slices ----------------------------------------------------------------------------------------------------------

    def _collective(self, record: dict[str, Any]) -> Iterator[Event]:
        label = self._names[record["name"]]
        collective, _, algorithm = label.partition(" by ")
        item = ITEM_BYTES[record["dtype"]]
        said = {
            "algorithm": algorithm,
            "bytes": item * max(record["input"], record["output"]),
            "elements_in": record["input"],
            "elements_out": record["output"],
            "dtype": DTYPES[record["dtype"]],
            "op": OPS[record["op"]],
            "root": record["peer"],
            "sequence": record["sequence"],
            "communicator": self._identity(record["lane"]),
        }
        if record["flags"] & _FAILED:
            said["failed"] = True
        if not record["launched"]:
            yield self._slice(record, record["launcher"] * _LANES, collective, "blocking", self._short(said))
        yield self._slice(record, record["lane"] * _LANES, collective, "communication", said)
        launched = record["launched"] or record["begin"]
        self._arrow("launch", None, (record["launcher"] * _LANES, launched), (record["lane"] * _LANES, record["begin"]))

    def _message(self, record: dict[str, Any]) -> Iterator[Event]:
        sends, failed = record["flags"] & _SENDS, record["flags"] & _FAILED
        ranks = self._lanes[record["lane"]][3]
        peer = ranks[record["peer"]] if record["peer"] >= 0 else -1
        said = {
            "bytes": record["input"],
            "dtype": DTYPES[record["dtype"]],
            "peer": peer,
            "tag": record["output"],
            "sequence": record["sequence"],
            "communicator": self._identity(record["lane"]),
        }
        if failed:
            said["failed"] = True
        lane = int(self._message_lanes[record["number"]])
        yield self._slice(record, lane, f"send to {peer}" if sends else f"recv from {peer}", "communication", said)
        self._arrow("launch", None, (record["launcher"] * _LANES, record["launched"]), (lane, record["begin"]))
        if not failed:
            ends = (self.rank, peer) if sends else (peer, self.rank)
            self._half_arrow("message", (0, self._lanes[record["lane"]][2], *ends, record["sequence"]), lane, record)

    def _blocking(self, record: dict[str, Any]) -> Iterator[Event]:
        said = {"communicator": self._identity(record["launcher"])}
        yield self._slice(record, record["lane"] * _LANES, self._names[record["name"]], "blocking", said)

    def _launch(self, record: dict[str, Any]) -> Iterator[Event]:
        name = self._names[record["name"]].partition(" by ")[0]
        said = {"communicator": self._identity(record["launcher"])}
        yield self._slice(record, record["lane"] * _LANES, f"launch {name}", "launch", said)

    def _wait(self, record: dict[str, Any]) -> Iterator[Event]:
        name = self._names[record["name"]].partition(" by ")[0]
        if record["flags"] & _OF_STREAM:
            said = self._event(record)
        else:
            said = {"sequence": record["sequence"], "communicator": self._identity(record["launcher"])}
        yield self._slice(record, record["lane"] * _LANES, f"wait for {name}", "wait", said)

    def _span(self, record: dict[str, Any]) -> Iterator[Event]:
        yield self._slice(record, record["lane"] * _LANES, self._names[record["name"]], "compute", {})

    def _instant(self, record: dict[str, Any]) -> Iterator[Event]:
        event = self._slice(record, record["lane"] * _LANES, self._names[record["name"]], "event", self._event(record))
        del event["dur"]
        yield event | {"ph": "i", "s": "t"}

    @staticmethod
    def _event(record: dict[str, Any]) -> dict[str, Any]:
        return {"event": record["sequence"]} if record["sequence"] else {}

    def _move(self, record: dict[str, Any]) -> Iterator[Event]:
        _, _, communicator, ranks = self._lanes[record["lane"]]
        sends, local = record["flags"] & _SENDS, record["peer"] < 0
        lane = record["lane"] * _LANES + _FIRST_STEP + record["step"]
        self._used.setdefault(lane, f"step {record['step']}, {self._titles[record['lane']]}")
        peer = self.rank if local else ranks[record["peer"]]
        if not record["flags"] & _CONTINUES:
            verb = "send to" if sends else "fold from" if record["flags"] & _FOLDS else "copy from"
            said = {
                "step": record["step"],
                "piece": record["output"],
                "bytes": record["input"],
                "sequence": record["sequence"],
                "communicator": self._identity(record["lane"]),
            }
            if sends:
                said["way"] = _core.Recorder.ways[record["launcher"]]
            yield self._slice(record, lane, "local" if local else f"{verb} {peer}", "step", said)
        if record["flags"] & _COMPLETES and not local:
            ends = (self.rank, peer) if sends else (peer, self.rank)
            key = (1, communicator, record["sequence"], *ends, record["step"], record["order"], record["output"])
            self._half_arrow("piece", key, lane, record)

    def _slice(self, record: dict[str, Any], lane: int, name: str, category: str, said: dict[str, Any]) -> Event:
        whose = self._lanes[lane // _LANES][0]
        title = self._titles[lane // _LANES]
        self._used.setdefault(lane, f"collectives, {title}" if whose == _COMMUNICATOR else title)
        begin = record["begin"]
        event = {
            "ph": "X",
            "pid": self.rank,
            "tid": lane,
            "ts": begin / 1000,
            "dur": (record["end"] - begin) / 1000,
            "name": name,
            "cat": category,
        }
        return event | {"args": said} if said else event

    @staticmethod
    def _short(said: dict[str, Any]) -> dict[str, Any]:
        return {name: said[name] for name in ("algorithm", "bytes", "sequence", "communicator")}

    # Arrows ----------------------------------------------------------------------------------------------------------

    def _arrow(self, name: str, key: int | None, start: tuple[int, int], end: tuple[int, int]) -> None:
        if key is None:
            self._num_arrows += 1
            key = self.rank << 32 | self._num_arrows
        for begins, (lane, time) in ((True, start), (False, end)):
            self._add_end(begins, name, key, lane, time)

    def _half_arrow(self, name: str, key: tuple[int, ...], lane: int, record: dict[str, Any]) -> None:
        """Adds this rank's end of an arrow between two ranks; the other rank has the other end, under the same key."""
        number = hash(key) % (_LAST_ID // 2) + _LAST_ID // 2  # numbers have the same hash in all processes
        sends = record["flags"] & _SENDS
        # A receive ends after its send began, even if rounding of the two clocks would hide that.
        self._add_end(bool(sends), name, number, lane, record["begin"] if sends else record["end"] - 1)

    def _add_end(self, begins: bool, name: str, key: int, lane: int, time: int) -> None:
        self._ends.extend((2 * _ARROWS.index(name) + begins, key, lane, time))

    def _arrows(self) -> Iterator[Event]:
        ends = iter(self._ends)
        for what, key, lane, time in zip(ends, ends, ends, ends, strict=True):
            name = _ARROWS[what // 2]
            begins = {"ph": "s"} if what % 2 else {"ph": "f", "bp": "e"}
            yield begins | {"pid": self.rank, "tid": lane, "ts": time / 1000, "name": name, "cat": name, "id": key}

    # Lanes -----------------------------------------------------------------------------------------------------------

    def _identity(self, lane: int) -> str:
        """Returns the identity of a communicator, the same on all its members."""
        return f"{self._lanes[lane][2]:x}"

    def _name_lanes(self) -> list[str]:
        titles: list[str] = []
        num_threads = 0
        for kind, name, _, ranks in self._lanes:
            if kind == _THREAD:
                num_threads += 1
                titles.append(name or ("host" if num_threads == 1 else f"host thread {num_threads}"))
            elif kind == _STREAM:
                titles.append(name)
            else:
                title = f"ranks {_ranges(ranks)}"
                same = sum(other.partition(" #")[0] == title for other in titles)
                titles.append(title if same == 0 else f"{title} #{same + 1}")
        return titles

    def _pack_messages(self, table: Any) -> npt.NDArray[np.int64]:
        """Returns the lane of each message, by the number of its record; messages of one lane do not overlap."""
        found = np.zeros(len(table), np.int64)
        ends: dict[int, list[int]] = {}  # by communicator: the end of the last message in each of its lanes
        for number in np.flatnonzero(table["what"] == _MESSAGE):
            record = table[number]
            base, begin, end = int(record["lane"]), int(record["begin"]), int(record["end"])
            lanes = ends.setdefault(base, [])
            free = next((number for number, last in enumerate(lanes) if last <= begin), len(lanes))
            free = min(free, _FIRST_STEP - 2)
            lanes[free : free + 1] = [end]
            found[number] = lane = base * _LANES + 1 + free
            self._used.setdefault(lane, f"messages, {self._titles[base]}" + (f", {free + 1}" if free else ""))
        return found

    def _lane_names(self) -> Iterator[Event]:
        order = {_THREAD: 0, _STREAM: 1, _COMMUNICATOR: 2}
        yield self._metadata("process_name", 0, name=f"rank {self.rank}")
        yield self._metadata("process_sort_index", 0, sort_index=self.rank)
        for lane, title in sorted(self._used.items()):
            kind = self._lanes[lane // _LANES][0]
            yield self._metadata("thread_name", lane, name=title)
            yield self._metadata("thread_sort_index", lane, sort_index=order[kind] * trace_file.LANES_OF_A_KIND + lane)

    def _metadata(self, name: str, lane: int, /, **said: Any) -> Event:
        return {"ph": "M", "pid": self.rank, "tid": lane, "name": name, "args": said}


def _ranges(ranks: Iterable[int]) -> str:
    """Returns the ranks in words: "0-3, 6"."""
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and rank == parts[-1][-1] + 1:
            parts[-1][1:] = [rank]
        else:
            parts.append([rank])
    return ", ".join("-".join(map(str, part)) for part in parts)
