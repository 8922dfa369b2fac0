"""hocket.show: what an algorithm does, step by step, or what a collective does, as text and as a picture."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from hocket.answers.answer import Answer
from hocket.answers.limits import check_proved_ranks, laws_asked
from hocket.answers.networks import Network
from hocket.answers.quantities import ranks_of_layout, read_layout, read_num_ranks
from hocket.answers.shown_collective import ShownCollective, show_collective
from hocket.answers.simulation_case import root_of
from hocket.answers.synthesis.optima import synthesised_named
from hocket.overloads import overload

if TYPE_CHECKING:
    from hocket.algorithms import Algorithm
    from hocket.network import Topology
    from hocket.schedule import Schedule, Step
    from hocket.view import Terminal

_DEFAULT_RANKS = 4
_MAX_JSON_ROWS = 1 << 22

_Primitive = Literal[
    "broadcast",
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "reduce",
    "gather",
    "scatter",
    "all_to_all",
    "barrier",
]


@dataclass(frozen=True, repr=False)
class ShownSchedule(Answer):
    """A schedule of an algorithm, its costs and its laws.

    sent: the most that a rank sends, as a share of the vector of the collective. promised: the promises for P ranks as
    text. labels: statements on the order of reduction. laws: those that were checked; breach: the one that is broken,
    in words. others: other collectives with an algorithm of this name; in_file: other algorithms of its file.
    """

    name: str
    collective: str
    num_ranks: int
    root: int
    groups: tuple[int, ...] | None
    dims: tuple[int, ...] | None
    num_chunks: int
    num_steps: int
    sent: float
    promised: dict[str, str]
    labels: tuple[str, ...]
    source: str
    laws: tuple[int, ...]
    breach: str | None
    doc: str
    others: tuple[str, ...]
    in_file: tuple[str, ...]
    schedule: "Schedule" = field(compare=False)

    def facts(self) -> dict[str, Any]:
        """Returns all but the steps as plain values."""
        names = (
            *("name", "collective", "num_ranks", "root", "groups", "dims", "num_chunks", "num_steps", "sent"),
            *("promised", "labels", "source", "laws", "breach"),
        )
        return {name: getattr(self, name) for name in names} | {"labels": list(self.labels)}

    def as_json(self) -> dict[str, Any]:
        """Returns the answer as plain values, as `hocket show --json` does. Raises ValueError for too many rows."""
        if self.schedule.num_rows > _MAX_JSON_ROWS:
            raise ValueError(f"expected at most {_MAX_JSON_ROWS:,} rows as JSON, found {self.schedule.num_rows:,}")
        return self.facts() | {"steps": [_as_json(step) for step in self.schedule.steps()]}

    def _print(self, console: "Terminal") -> None:
        """Prints the steps, the costs and the laws."""
        from hocket.view import print_schedule

        print_schedule(console, self.schedule, self.facts(), self.doc, list(self.others), list(self.in_file))

    def svg(self) -> str:
        """Returns the steps as SVG."""
        from hocket.view import draw_schedule

        return draw_schedule(self.schedule, self.facts(), self.doc)

    def _repr_html_(self) -> str:
        return self.svg()  # it says all that the text says


@overload
def show(  # type: ignore[overload-overlap]  # a name that is known when types are checked
    algorithm: _Primitive, ranks: int | None = None, *, root: int | None = None
) -> ShownCollective: ...
@overload
def show(
    algorithm: "str | Algorithm | Schedule",
    ranks: int | None = None,
    *,
    collective: str | None = None,
    root: int | None = None,
    groups: Sequence[int] | None = None,
    dims: Sequence[int] | None = None,
    topology: "str | Network | Topology | None" = None,
) -> ShownSchedule: ...
def show(
    algorithm: "str | Algorithm | Schedule",
    ranks: int | None = None,
    *,
    collective: str | None = None,
    root: int | None = None,
    groups: Sequence[int] | None = None,
    dims: Sequence[int] | None = None,
    topology: "str | Network | Topology | None" = None,
) -> ShownSchedule | ShownCollective:
    """Returns the steps of an algorithm, or what a collective does, for 4 ranks unless it says otherwise.

    algorithm: a name, FILE.py, FILE.py:NAME, FILE.xml, FILE.json, what @hocket.algorithm returns, or a schedule; or
    the name of a collective, which shows what each rank holds before and after. collective: needed if several have an
    algorithm of this name; without it all_reduce is taken, if it has one. groups, dims: for algorithms that take them;
    they also set the number of ranks. topology: the network for which "synthesised" is made. Raises ValueError for a
    bad argument. A broken law is in `breach`.
    """
    named = _collective_named(algorithm)
    if named is not None:
        given = (("collective", collective), ("groups", groups), ("dims", dims), ("topology", topology))
        for option, value in given:
            if value is not None:
                raise ValueError(f"{named}: expected no {option}, which is for algorithms; found {value!r}")
        return show_collective(named, ranks, root)
    from hocket.algorithms import find, only, said
    from hocket.errors import VerifyError
    from hocket.schedule import Schedule

    groups, dims = read_layout(groups, dims)
    if isinstance(algorithm, Schedule):
        ranks, root = ranks or algorithm.num_ranks, root or algorithm.root or None
        algorithm = _of_schedule(algorithm)
    if topology is not None:
        algorithm, ranks = synthesised_named(algorithm, collective, ranks, topology=topology, root=root)
    found = find(algorithm, collective)
    kinds = [one.collective for one in found]
    kind = "all_reduce" if "all_reduce" in kinds else kinds[0]
    one = only(algorithm, [one for one in found if one.collective == kind])
    root, num_ranks = root_of(one.collective, root), None if ranks is None else read_num_ranks(ranks)
    if num_ranks is None:
        allowed = filter(one.allows, (_DEFAULT_RANKS, *range(2, 65)))  # a file may support one rank count only
        num_ranks = ranks_of_layout(groups, dims) or next(allowed, _DEFAULT_RANKS)
    check_proved_ranks([num_ranks], "a picture")
    layout = one.layout(num_ranks, root, groups=groups, dims=dims)
    schedule = one.build(num_ranks, root, groups=groups, dims=dims)
    breach, labels = None, list[str]()
    laws = laws_asked(schedule)
    try:
        if laws:
            labels = sorted(one.verify(num_ranks, root, groups=groups, dims=dims, laws=laws).labels)
    except VerifyError as error:
        breach = str(error).removesuffix(error.next_step)  # which is to draw it
    return ShownSchedule(
        name=one.name,
        collective=one.collective,
        num_ranks=schedule.num_ranks,
        root=schedule.root,
        groups=layout.groups,
        dims=layout.dims,
        num_chunks=schedule.num_chunks,
        num_steps=schedule.num_steps,
        sent=float(schedule.most_sent()),
        promised={"steps": said(one.steps), "sent": said(one.sent)},
        labels=tuple(labels),
        source=one.source,
        laws=laws,
        breach=breach,
        doc=one.doc,
        others=tuple(sorted(other.collective for other in found if other is not one and other.name == one.name)),
        in_file=tuple(sorted({f"{algorithm}:{other.name}" for other in found if other.name != one.name})),
        schedule=schedule,
    )


def _collective_named(name: object) -> str | None:
    """Returns the collective of this name, in Hocket's spelling or NCCL's, unless an algorithm has the name."""
    from hocket.algorithms import ALGORITHMS
    from hocket.schedule import find_collective_name

    if not isinstance(name, str) or any(name == one for _, one in ALGORITHMS):
        return None
    return find_collective_name(name)


def _of_schedule(schedule: "Schedule") -> "Algorithm":
    """Returns an algorithm that has this schedule, and no other."""
    from hocket.algorithms import Algorithm

    ranks = (str(schedule.num_ranks), lambda num_ranks: num_ranks == schedule.num_ranks)
    return Algorithm(schedule.collective, "schedule", "", schedule.site(0), lambda _: schedule, ranks=ranks)


def _as_json(step: "Step") -> list[dict[str, Any]]:
    from hocket.schedule import COLUMNS

    columns = {name: getattr(step, name).tolist() for name in COLUMNS}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
