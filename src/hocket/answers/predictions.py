"""hocket.simulate: how long a collective takes on a network, and which links are the bottleneck."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from hocket.answers.answer import Answer
from hocket.answers.machines.machine_case import MachineCase
from hocket.answers.machines.machine_choices import check_no_topology, machine_cases
from hocket.answers.network_options import DEFAULT_LEVEL
from hocket.answers.networks import Network, named_network
from hocket.answers.quantities import parse_size, read_num_ranks
from hocket.answers.simulation_case import SimulationCase, algorithms_of, cases_of

if TYPE_CHECKING:
    from hocket.algorithms import Algorithm
    from hocket.network import LibraryTime, SimulationResult, Topology
    from hocket.view import Terminal


@dataclass(frozen=True, repr=False)
class Prediction(Answer):
    """The predicted time of a collective on a network; sizes in bytes, times in seconds, rates in bytes per second.

    bound_seconds: the time that no algorithm can beat; ratio: the time divided by it. num_idle: nodes that are no ranks
    and may not forward, in the bound as in the simulation, such as idle accelerators. algbw: the size divided by the
    time; busbw: algbw times a factor that makes it comparable with the bandwidth of links. groups, dims: of an
    algorithm that takes them. changes: the constants that differ from their defaults. overhead_seconds: what each
    message costs its sender and its receiver, which the bound leaves out. bandwidth, latency, reduction and contention
    add up to the time: for which the bottleneck links are busy, for which steps wait for links and ranks otherwise, and
    the rest. binding_links: the bottleneck, at most 8 of num_binding_links; binding_share: the share of the time that
    they are busy. A ratio or a rate is None if nothing takes any time or no bytes are moved. machine, protocol: what
    was predicted, if it is a library on a machine. others: the predictions of the other algorithms that were tried.
    result: the simulation itself, with the load of every link; None in `others`. notes: what the reader should know,
    for example that an algorithm was not proved.
    """

    collective: str
    algorithm: str
    topology: str
    num_ranks: int
    num_bytes: int
    groups: tuple[int, ...] | None
    dims: tuple[int, ...] | None
    level: str
    changes: tuple[str, ...]
    overhead_seconds: float
    seconds: float
    bound_seconds: float
    num_idle: int
    ratio: float | None
    algbw: float | None
    busbw: float | None
    latency: float
    bandwidth: float
    reduction: float
    contention: float
    num_steps: int
    num_binding_links: int
    binding_links: tuple[str, ...]
    binding_share: float
    machine: str = ""
    protocol: str = ""
    others: "tuple[Prediction, ...]" = ()
    result: "SimulationResult | LibraryTime | None" = field(default=None, compare=False)
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, row: dict[str, Any], **more: Any) -> "Prediction":
        """Returns the prediction in a row of SimulationCase.row."""
        return cls(**row | {"binding_links": tuple(row["binding_links"])}, **more)

    def row(self) -> dict[str, Any]:
        """Returns the prediction of this algorithm alone as plain values."""
        names = [one.name for one in fields(self) if one.name not in ("others", "result", "notes")]
        return {name: getattr(self, name) for name in names} | {"binding_links": list(self.binding_links)}

    def as_json(self) -> dict[str, Any]:
        """Returns the answer as plain values, as `hocket simulate --json` does.

        rank_seconds: when each rank finishes; None of a machine's library, of which only the last rank is predicted.
        """
        ends = getattr(self.result, "rank_seconds", None)
        return self.row() | {
            # Switches that reduce follow the ranks.
            "rank_seconds": None if ends is None else ends[: self.num_ranks].tolist(),
            "others": [one.row() for one in self.others],
        }

    def _print(self, console: "Terminal") -> None:
        """Prints the time, its parts, the bottleneck and the busiest links, and the other algorithms."""
        from hocket.view import print_result

        print_result(console, self.row(), self.result, [one.row() for one in self.others])

    def svg(self) -> str:
        """Returns the network as SVG; the busier a link, the thicker and redder it is."""
        from hocket.view import draw_network, name_case

        return "" if self.result is None else draw_network(self.result.topology, self.result, name_case(self.row()))


def simulate(
    collective: str,
    num_bytes: int | str | None = None,
    ranks: int | None = None,
    *,
    topology: "str | Network | Topology | None" = None,
    machine: str = "",
    algorithm: "str | Algorithm | Sequence[str | Algorithm]" = (),
    root: int | None = None,
    level: str = DEFAULT_LEVEL,
    links: str | Sequence[str] = (),
    reduce: str = "",
    overhead: str = "",
    groups: Sequence[int] | None = None,
    dims: Sequence[int] | None = None,
    record: bool = False,
    protocol: str = "",
) -> Prediction:
    """Predicts the time of a collective on a network: of one algorithm, or of the fastest of several.

    topology: KIND:ARGS, a file, or what hocket.topology returns. machine: instead, NAME[:HOSTS] of a machine whose GPU
    library is predicted, such as "h100:4"; NAME may be a file, and algorithm and protocol are those of the library.
    algorithm: names, FILE.py:NAME or what @hocket.algorithm returns; without it, up to 1024 ranks, all built-in ones
    are tried. num_bytes: the size of the whole vector, a number or text such as "64M" (the default); not for barrier.
    ranks: use only the first ranks. level: "closed", "steps" or "events". links, reduce and overhead change the network
    as the options of `hocket simulate` do. groups, dims: for algorithms that take them; they also set the number of
    ranks. record: keep what was sent when.
    Sweeps over sizes, rank counts and networks are on the command line: `hocket simulate --sweep`.
    Raises ValueError for a bad argument, TopologyError for an impossible network, VerifyError for an algorithm that
    breaks a law.
    """
    from hocket.schedule import find_collective_name

    collective = find_collective_name(collective) or collective
    sizes = [] if num_bytes is None else [parse_size(num_bytes)]
    rank_counts = [] if ranks is None else [read_num_ranks(ranks)]
    if machine:
        given = {"topology": topology, "links": links, "reduce": reduce, "overhead": overhead, "groups": groups}
        check_no_topology(given | {"dims": dims, "level": level, "record": record})
        return fastest_of(
            machine_cases(
                collective,
                [machine],
                algorithms=[str(one) for one in algorithms_of(algorithm)],
                protocol=protocol,
                sizes=sizes,
                rank_counts=rank_counts,
                root=root,
            )
        )
    if topology is None:
        raise ValueError("expected a topology (--topology), or a machine (--machine); found neither")
    if protocol:
        raise ValueError(f"protocol: expected a machine (--machine), whose library has protocols; found {protocol!r}")
    cases, notes = cases_of(
        collective,
        [named_network(topology)],
        algorithms=algorithms_of(algorithm),
        sizes=sizes,
        rank_counts=rank_counts,
        links=links,
        reduce=reduce,
        overhead=overhead,
        level=level,
        root=root,
        groups=groups,
        dims=dims,
    )
    return fastest_of(cases, notes, record=record)


def fastest_of(
    cases: Sequence[SimulationCase | MachineCase], notes: Sequence[str] = (), *, record: bool = False
) -> Prediction:
    """Returns the prediction for the fastest of the cases, with the others."""
    rows = [case.row() for case in cases]
    best = min(range(len(rows)), key=lambda number: rows[number]["seconds"])
    others = tuple(Prediction.of(row) for number, row in enumerate(rows) if number != best)
    return Prediction.of(rows[best], others=others, result=cases[best].result(record=record), notes=tuple(notes))
