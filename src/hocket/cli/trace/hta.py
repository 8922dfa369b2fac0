"""Writes a trace for Holistic Trace Analysis (HTA): one file per rank, in the form of PyTorch's profiler on a GPU.

HTA looks at kernels on streams, so computation and communication become kernels. Computation of the program's threads
is on stream 7, where PyTorch computes; each Hocket stream and each communicator has its own stream. Communication is
named ncclKernel, by which HTA recognises it. Spans named "ProfilerStep#N" are steps; without any, the whole trace is
one step. HTA counts in whole microseconds.
"""

import gzip
import json
from pathlib import Path
from typing import Any

from hocket.view import Timeline, saving
from hocket.view.traces import trace_timeline

_COMPUTE_STREAM, _FIRST_STREAM = 7, 20
_STEP = "ProfilerStep#"


def export(timeline: Timeline, folder: Path) -> Path:
    """Creates the folder, writes rank_N.json.gz for each rank, returns the folder. Raises ValueError on failure."""
    if not timeline.ranks:
        raise ValueError("expected a trace that hocket.trace or HOCKET_TRACE wrote, found one that names no ranks")
    with saving.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for rank, said in timeline.ranks.items():
            document = {
                "schemaVersion": 1,
                "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": said["size"]},
                "traceEvents": _Exported(timeline, rank).events,
            }
            (folder / f"rank_{rank}.json.gz").write_bytes(gzip.compress(json.dumps(document).encode()))
    return folder


class _Exported:
    def __init__(self, timeline: Timeline, rank: int) -> None:
        self._rank, self._communicators = rank, timeline.ranks[rank]["communicators"]
        self._launched = {(arrow.end, arrow.end_time): arrow for arrow in timeline.arrows if arrow.name == "launch"}
        self.events: list[dict[str, Any]] = []
        self._correlation = 0
        lanes = timeline.of_rank(rank)
        steps = [one for lane in lanes for one in lane.slices if one.name.startswith(_STEP)]
        for step in steps or [trace_timeline.Slice(_STEP + "0", "compute", 0.0, timeline.seconds, {})]:
            self._add(step.name, "user_annotation", 0, step.begin, step.end)
        for number, lane in enumerate(lanes):
            for one in lane.slices:
                if one.category == "communication":
                    self._communication(lane, _FIRST_STREAM + number, one)
                elif one.category == "compute" and not one.name.startswith(_STEP):
                    self._computing(lane, _COMPUTE_STREAM if lane.is_thread else _FIRST_STREAM + number, one)

    def _communication(self, lane: trace_timeline.Lane, stream: int, one: trace_timeline.Slice) -> None:
        collective = one.name.partition(" ")[0]
        title = "".join(word.title() for word in collective.split("_"))
        communicator = str(one.said.get("communicator", ""))
        ranks = self._communicators.get(communicator, [])
        said = {
            "Collective name": collective,
            "In msg nelems": one.said.get("elements_in", 0),
            "Out msg nelems": one.said.get("elements_out", 0),
            "Group size": len(ranks),
            "dtype": one.said.get("dtype", ""),
            "Process Group Name": communicator,
            "Process Group Ranks": str(ranks),
            "Seq": one.said.get("sequence", 0),
        }
        launch = self._launched.get((lane.place, one.begin))
        launched = one.begin if launch is None else launch.start_time
        self._kernel(f"ncclKernel_{title}", stream, launched, one.begin, one.end, said)

    def _computing(self, lane: trace_timeline.Lane, stream: int, one: trace_timeline.Slice) -> None:
        if lane.is_thread:
            self._add(one.name, "cpu_op", lane.key, one.begin, one.end)
        for begin, end in trace_timeline.without([(one.begin, one.end)], trace_timeline.union(one.inside)):
            self._kernel(one.name, stream, begin, begin, end, {})

    def _kernel(self, name: str, stream: int, launched: float, begin: float, end: float, said: dict[str, Any]) -> None:
        self._correlation += 1
        linked = {"correlation": self._correlation}
        self._add("cudaLaunchKernel", "cuda_runtime", 0, launched, launched + 1e-6, linked)
        self._add(name, "kernel", stream, begin, end, {"device": 0, "stream": stream} | linked | said)

    def _add(
        self,
        name: str,
        category: str,
        lane: trace_timeline.Key,
        begin: float,
        end: float,
        said: dict[str, Any] | None = None,
    ) -> None:
        on_device = category == "kernel"
        start = round(begin * 1e6)
        self.events.append(
            {
                "ph": "X",
                "pid": 0 if on_device else self._rank + 1,
                "tid": lane,
                "ts": start,
                "dur": max(round(end * 1e6) - start, 1),
                "name": name,
                "cat": category,
                "args": said or {},
            }
        )
