"""hocket.pipeline: a pipeline schedule, proved and timed, as text and as a picture."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hocket.answers.answer import Answer
from hocket.answers.pipeline_tables import PipelineReference, table_asked
from hocket.errors import VerifyError, did_you_mean
from hocket.training import pipeline as pipelines

if TYPE_CHECKING:
    from hocket.view import Terminal

_TIMES = {"F": 1.0, "B": 1.0, "W": 1.0, "message": 0.0}
_SHORTEST, _LONGEST = 1e-9, 1e9


@dataclass(frozen=True, repr=False)
class ShownPipeline(Answer):
    """A table of a pipeline: when each operation runs, and what is proved.

    times: of F, B, W and a message, in any unit. makespan, cost, bubble_rate, and idle by rank: in these times; None
    if the table breaks law 1 or 2. peak_activations, by rank: the most forwards at once whose backward has not run;
    peak_until_weight: whose W has not run. fewest_messages: that each channel must hold; fifo is None if no number is
    enough. law, breach: the broken law, and where and how it is broken, in words; what is not proved then is None.
    """

    name: str
    num_ranks: int
    num_stages: int
    num_microbatches: int
    num_operations: int
    times: dict[str, float]
    makespan: float | None
    cost: float | None
    bubble_rate: float | None
    idle: tuple[float, ...] | None
    peak_activations: tuple[int, ...] | None
    peak_until_weight: tuple[int, ...] | None
    fewest_messages: pipelines.FewestMessages | None
    law: int | None
    breach: str | None
    table: pipelines.PipelineTable = field(compare=False)
    timing: pipelines.PipelineTiming | None = field(compare=False)

    @property
    def holds(self) -> bool:
        """Whether all five laws hold."""
        return self.breach is None

    def __bool__(self) -> bool:
        return self.holds

    def deadlock(self) -> str:
        """Returns the deadlock, in words, if channels hold one message less than they must; "" if they need none."""
        if self.fewest_messages is None or not self.fewest_messages.tagged:
            return ""
        try:
            pipelines.verify_table(self.table, capacity=self.fewest_messages.tagged - 1)
        except VerifyError as error:
            return str(error)
        return ""

    def facts(self) -> dict[str, Any]:
        """Returns all but the deadlock as plain values."""
        fewest = self.fewest_messages
        return {
            "name": self.name,
            "num_ranks": self.num_ranks,
            "num_stages": self.num_stages,
            "num_microbatches": self.num_microbatches,
            "num_operations": self.num_operations,
            "times": dict(self.times),
            "makespan": self.makespan,
            "cost": self.cost,
            "bubble_rate": self.bubble_rate,
            "idle": None if self.idle is None else list(self.idle),
            "peak_activations": None if self.peak_activations is None else list(self.peak_activations),
            "peak_until_weight": None if self.peak_until_weight is None else list(self.peak_until_weight),
            "fewest_messages": {
                "tagged": None if fewest is None else fewest.tagged,
                "fifo": None if fewest is None else fewest.fifo,
            },
            "law": self.law,
            "breach": self.breach,
        }

    def as_json(self) -> dict[str, Any]:
        """Returns the answer as plain values, as `hocket show pipeline --json` does."""
        return self.facts() | {"deadlock": self.deadlock()}

    def _print(self, console: "Terminal") -> None:
        """Prints the picture, times and memory of each rank, and the messages."""
        from hocket.view import print_pipeline

        print_pipeline(console, self.table, self.timing, self.facts())

    def print_proof(self, console: "Terminal") -> None:
        """Prints what holds, law by law, or the breach, as `hocket verify --pipeline` does."""
        from hocket.view import print_pipeline_proof

        print_pipeline_proof(console, self.table, self.as_json())

    def svg(self) -> str:
        """Returns the picture as SVG; "" for a table that is too large to be read."""
        from hocket.view import draw_pipeline, is_drawn

        return draw_pipeline(self.table, self.timing, self.facts()) if is_drawn(self.table) else ""

    def _repr_html_(self) -> str:
        from hocket.view import is_drawn

        return self.svg() if is_drawn(self.table) else super()._repr_html_()  # the picture says all that the text says


def pipeline(
    schedule: PipelineReference,
    ranks: int | None = None,
    microbatches: int | None = None,
    chunks: int | None = None,
    times: Mapping[str, float] | None = None,
) -> ShownPipeline:
    """Returns a pipeline schedule, proved and timed, for 4 ranks and 8 micro-batches unless it says otherwise.

    schedule: a name such as "1f1b" or "zb-h1", FILE.csv of PyTorch, FILE.py, FILE.py:NAME, a function of
    (rank, p, m, v), or a table. chunks: stages on each rank, for schedules that take any number. times: of "F", "B",
    "W" and "message" in one unit; by default 1, and messages take 0. Raises ValueError or TypeError for a bad argument,
    and ScheduleError if a Python file cannot run. A broken law is in `breach`.
    """
    table = table_asked(schedule, ranks, microbatches, chunks)
    used = _TIMES | _checked(times or {})
    timing, proof, broken = None, None, None
    try:
        timing = pipelines.time_table(table, **used)
        proof = pipelines.verify_table(table)
    except VerifyError as error:
        broken = error
    return ShownPipeline(
        name=table.name,
        num_ranks=table.num_ranks,
        num_stages=table.num_stages,
        num_microbatches=table.num_microbatches,
        num_operations=len(table),
        times=used,
        makespan=None if timing is None else float(timing.makespan),
        cost=None if timing is None else float(timing.cost),
        bubble_rate=None if timing is None else timing.bubble_rate,
        idle=None if timing is None else tuple(timing.idle.tolist()),
        peak_activations=None if proof is None else tuple(proof.peak_activations.tolist()),
        peak_until_weight=None if proof is None else tuple(proof.peak_until_weight.tolist()),
        fewest_messages=None if proof is None else proof.fewest_messages,
        law=None if broken is None else broken.law,
        breach=None if broken is None else str(broken),
        table=table,
        timing=timing,
    )


def _checked(times: Mapping[str, float]) -> dict[str, float]:
    """Returns the times as they are, if they have the right names and pictures of them are possible."""
    given: Mapping[str, object] = times
    for name, time in given.items():
        if name not in _TIMES:
            raise ValueError(f"expected times of {', '.join(_TIMES)}; found {name!r}{did_you_mean(str(name), _TIMES)}")
        if not isinstance(time, int | float) or not (time == 0 or _SHORTEST <= time <= _LONGEST):
            expected = f"0, or from {_SHORTEST:g} to {_LONGEST:g}"
            raise ValueError(f"expected a time of {expected} for {name}; found {time!r}; take another unit")
    return {name: float(time) for name, time in times.items()}
