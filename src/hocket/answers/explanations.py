"""hocket.explain: which algorithm runs for a call, what each would cost, and why one of them wins."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from hocket.answers.answer import Answer
from hocket.answers.host_crossings import HostsExplanation, explain_on_hosts
from hocket.answers.limits import check_memory, check_ranks
from hocket.answers.machines.machine_choices import check_no_topology, choices_on_machine, machine_cases
from hocket.answers.network_options import read_links
from hocket.answers.networks import Network, named_network
from hocket.answers.predictions import Prediction
from hocket.answers.quantities import parse_size, ranks_of_layout, read_hosts, read_layout, read_num_ranks
from hocket.answers.simulation_case import DEFAULT_BYTES, SimulationCase, algorithms_of, check_collective
from hocket.answers.synthesis.synthesised_algorithm import SYNTHESISED
from hocket.answers.ways import Ways, ways_of
from hocket.overloads import overload

if TYPE_CHECKING:
    from hocket.algorithms import Algorithm
    from hocket.network import Topology
    from hocket.view import Terminal


@dataclass(frozen=True)
class Candidate:
    """An algorithm that could do a call on this host; sizes in bytes, times in seconds, None if unknown.

    twins: algorithms with the same schedule. sent and reduced: of the busiest rank. predicted = latency + bandwidth +
    reduction. error: how far half of the predictions are off, as a share. measured, low, high: the median and the
    middle half of `rounds` rounds. complete: whether it was timed to the end, and not dropped as slower.
    """

    algorithm: str
    twins: tuple[str, ...]
    steps: int
    sent: int
    reduced: int
    predicted: float | None
    latency: float | None
    bandwidth: float | None
    reduction: float | None
    error: float | None
    measured: float | None
    low: float | None
    high: float | None
    rounds: int | None
    complete: bool


@dataclass(frozen=True)
class SizeRange:
    """The fastest algorithm from min_bytes to max_bytes, both included; max_bytes is None without an upper end."""

    min_bytes: int
    max_bytes: int | None
    algorithm: str


@dataclass(frozen=True, repr=False)
class Explanation(Answer):
    """Which algorithm runs for a call on this host, and why.

    by: what decided, "table", "tuner file" or HOCKET_ALGO. table: what the table alone says. algo: HOCKET_ALGO's list
    for this collective. tuned: when `hocket tune` measured; None if predictions are rough. asked: the algorithms that
    the call named. candidates: the fastest first.
    """

    collective: str
    num_ranks: int
    num_bytes: int
    algorithm: str
    by: str
    table: str
    tuner_file_lines: int
    algo: str
    tuned: str | None
    asked: tuple[str, ...]
    candidates: tuple[Candidate, ...]
    fastest_measured: tuple[SizeRange, ...]
    fastest_predicted: tuple[SizeRange, ...]

    @property
    def why(self) -> str:
        """Why the algorithm wins, or which one would be faster, and how those that were asked about compare."""
        from hocket.view import explain_text

        return " ".join(explain_text.reasons(self.as_json()))

    def ways(self) -> Ways:
        """Returns by which ways the data of the call travels with the algorithm that runs."""
        return ways_of(self.collective, self.algorithm, self.num_ranks, self.num_bytes)

    def _print(self, console: "Terminal") -> None:
        """Prints the candidates, why one of them runs, and which is the fastest at which size."""
        from hocket.view import print_explanation

        print_explanation(console, self.as_json())

    def as_json(self) -> dict[str, Any]:
        """Returns the answer as plain values, as `hocket explain --json` does."""
        return asdict(self)


@dataclass(frozen=True, repr=False)
class NetworkExplanation(Answer):
    """What each algorithm costs for a call on a network, and why the fastest wins.

    default: what runs in a job on such hosts if nothing names an algorithm; "" if the network has no hosts. asked: the
    algorithms that the call named. candidates: the fastest first. steps: the messages of the fastest one: first and
    last step, and for each message source, target and bytes. fastest: the fastest algorithm by size.
    """

    collective: str
    topology: str
    num_ranks: int
    num_bytes: int
    algorithm: str
    default: str
    asked: tuple[str, ...]
    candidates: tuple[Prediction, ...]
    steps: tuple[dict[str, Any], ...]
    fastest: tuple[SizeRange, ...]

    @property
    def why(self) -> str:
        """Why the algorithm wins, and how those that were asked about compare, in a few sentences."""
        from hocket.view.networks import network_explanation

        return " ".join(network_explanation.reasons(self.as_json()))

    def _print(self, console: "Terminal") -> None:
        """Prints the candidates, why the first wins, its messages, and which is the fastest at which size."""
        from hocket.view import print_network_explanation

        print_network_explanation(console, self.as_json())

    def as_json(self) -> dict[str, Any]:
        """Returns the answer as plain values, as `hocket explain --topology ... --json` does."""
        candidates = [one.row() for one in self.candidates]
        fastest = [asdict(one) for one in self.fastest]
        names = ("collective", "topology", "num_ranks", "num_bytes", "algorithm", "default")
        plain = {name: getattr(self, name) for name in names} | {"asked": list(self.asked)}
        return plain | {"candidates": candidates, "steps": list(self.steps), "fastest": fastest}


@overload
def explain(
    collective: str,
    num_bytes: int | str | None,
    ranks: int,
    *,
    topology: None = ...,
    algorithm: "str | Algorithm | Sequence[str | Algorithm]" = ...,
    measure: bool = ...,
) -> Explanation: ...
@overload
def explain(
    collective: str,
    num_bytes: int | str | None = ...,
    *,
    ranks: int,
    topology: None = ...,
    algorithm: "str | Algorithm | Sequence[str | Algorithm]" = ...,
    measure: bool = ...,
) -> Explanation: ...
@overload
def explain(
    collective: str,
    num_bytes: int | str | None = ...,
    ranks: int | None = ...,
    *,
    hosts: int | Sequence[int],
    algorithm: "str | Algorithm | Sequence[str | Algorithm]" = ...,
) -> HostsExplanation: ...
@overload
def explain(
    collective: str,
    num_bytes: int | str | None = ...,
    ranks: int | None = ...,
    *,
    topology: "str | Network | Topology",
    algorithm: "str | Algorithm | Sequence[str | Algorithm]" = ...,
    links: str | Sequence[str] = ...,
    reduce: str = ...,
    overhead: str = ...,
    groups: Sequence[int] | None = ...,
    dims: Sequence[int] | None = ...,
) -> NetworkExplanation: ...
@overload
def explain(
    collective: str,
    num_bytes: int | str | None = ...,
    ranks: int | None = ...,
    *,
    machine: str,
    algorithm: "str | Algorithm | Sequence[str | Algorithm]" = ...,
    protocol: str = ...,
) -> NetworkExplanation: ...
@overload
def explain(
    collective: str,
    num_bytes: int | str | None = ...,
    ranks: int | None = ...,
    *,
    topology: "str | Network | Topology | None" = ...,
    algorithm: "str | Algorithm | Sequence[str | Algorithm]" = ...,
    measure: bool = ...,
    links: str | Sequence[str] = ...,
    reduce: str = ...,
    overhead: str = ...,
    groups: Sequence[int] | None = ...,
    dims: Sequence[int] | None = ...,
    hosts: int | Sequence[int] | None = ...,
    machine: str = ...,
    protocol: str = ...,
) -> Explanation | NetworkExplanation | HostsExplanation: ...


def explain(
    collective: str,
    num_bytes: int | str | None = None,
    ranks: int | None = None,
    *,
    topology: "str | Network | Topology | None" = None,
    algorithm: "str | Algorithm | Sequence[str | Algorithm]" = (),
    measure: bool = False,
    links: str | Sequence[str] = (),
    reduce: str = "",
    overhead: str = "",
    groups: Sequence[int] | None = None,
    dims: Sequence[int] | None = None,
    hosts: int | Sequence[int] | None = None,
    machine: str = "",
    protocol: str = "",
) -> Explanation | NetworkExplanation | HostsExplanation:
    """Explains which algorithm runs for a call, what each would cost, and why one of them wins.

    num_bytes: the size of the whole vector, a number or text such as "64M" (the default); not for barrier. With
    `ranks` alone the call is explained on this host; measure=True times the algorithms now. With `hosts`, their number
    or the number of ranks on each, it is explained by what algorithms carry between hosts. With `topology`, KIND:ARGS,
    a file, or what hocket.topology returns, all costs are simulated on that network, among its first `ranks` ranks;
    links, reduce and overhead change it as the options of `hocket simulate` do; groups and dims are for algorithms that
    take them. algorithm: FILE.py:NAME, what @hocket.algorithm returns, or several, to compare with the built-in
    algorithms. With `machine`, NAME[:HOSTS], the algorithms are those of the GPU library on that machine, in their
    fastest protocol or in `protocol`. Raises ValueError for a bad argument, TopologyError for an impossible network,
    VerifyError for an algorithm that breaks a law.
    """
    from hocket.schedule import find_collective_name

    collective = find_collective_name(collective) or collective
    if machine:
        given = {"topology": topology, "measure": measure, "links": links, "reduce": reduce, "overhead": overhead}
        check_no_topology(given | {"groups": groups, "dims": dims, "hosts": hosts})
        asked_of_library = [str(one) for one in algorithms_of(algorithm)]
        cases = machine_cases(
            collective,
            [machine],
            algorithms=asked_of_library,
            protocol=protocol,
            sizes=[] if num_bytes is None else [parse_size(num_bytes)],
            rank_counts=[] if ranks is None else [read_num_ranks(ranks)],
        )
        return _on_network(choices_on_machine(cases), asked_of_library)
    if protocol:
        raise ValueError(f"protocol: expected a machine (--machine), whose library has protocols; found {protocol!r}")
    if hosts is not None and (topology is not None or measure):
        other = "measure (--measure)" if topology is None else "a topology (--topology), which has hosts of its own"
        raise ValueError(f"hosts (--hosts) are for counting what goes between them; found also {other}; leave one out")
    placed = None if hosts is None else read_hosts(hosts, ranks if ranks is None else read_num_ranks(ranks))
    if placed is not None:
        ranks = len(placed)
    if topology is None and ranks is None:
        raise ValueError("expected ranks (--ranks), or a topology (--topology); found neither")
    groups, dims = read_layout(groups, dims)
    options = {"links": links, "reduce": reduce, "overhead": overhead, "groups": groups, "dims": dims}
    if topology is None and any(options.values()):
        named = ", ".join(name for name, value in options.items() if value)
        raise ValueError(f"expected a topology (--topology) for {named}; found none")
    ranks = ranks_of_layout(groups, dims) if ranks is None else read_num_ranks(ranks)
    if topology is not None and measure:
        raise ValueError("measure (--measure) times this machine and excludes a topology; leave one of them out")
    check_collective(collective)
    if collective == "barrier" and num_bytes is not None:
        raise ValueError(f"expected no num_bytes (--bytes), as barrier moves no data; found {num_bytes}")
    size = 1 if collective == "barrier" else parse_size(DEFAULT_BYTES if num_bytes is None else num_bytes)
    names = algorithms_of(algorithm)
    made = [SYNTHESISED] if topology is not None and SYNTHESISED in names else []
    own = _registered([one for one in names if one not in made], collective)
    if topology is None:
        assert ranks is not None
        for one in own.values():
            one.verify(ranks)
        if placed is not None:
            return explain_on_hosts(collective, size, placed, own)
        return _on_host(collective, ranks, size, own, measure=measure)
    from hocket.answers.network_choices import choices_on_network

    call = SimulationCase(
        collective,
        "",
        size,
        named_network(topology),
        ranks,
        read_links(links),
        reduce,
        overhead=overhead,
        groups=groups,
        dims=dims,
    )
    asked = [*(one.name for one in own.values()), *made]
    for name in asked:
        case = replace(call, algorithm=name)
        case.check()
        case.prove()
    return _on_network(_as_given(choices_on_network(call, asked), own), [*own, *made])


def _on_network(found: dict[str, Any], asked: Iterable[str]) -> NetworkExplanation:
    candidates = tuple(Prediction.of(row) for row in found.pop("candidates"))
    fastest = tuple(SizeRange(**one) for one in found.pop("fastest"))
    found["steps"] = tuple(found["steps"])
    return NetworkExplanation(**found, asked=tuple(asked), candidates=candidates, fastest=fastest)


def _registered(references: "str | Algorithm | Sequence[str | Algorithm]", collective: str) -> "dict[str, Algorithm]":
    """Returns the algorithms of these files and names, each by what it is called in the answer: as it was given.

    A file registers its own, so that they are compared too. Raises ValueError for two of one name: only the later one
    is registered under it.
    """
    from hocket.algorithms import ALGORITHMS, find, only

    own: dict[str, Algorithm] = {}
    for reference in algorithms_of(references):
        one = only(reference, find(reference, collective))
        if ALGORITHMS.get((one.collective, one.name)) is not one:
            raise ValueError(f"expected an algorithm that @hocket.algorithm(...) has registered; found {one}")
        called = reference if isinstance(reference, str) else one.name
        before = next((name for name, other in own.items() if other.name == one.name and name != called), None)
        if before is not None:
            raise ValueError(
                f"expected algorithms of different names; found {before} and {called}, both named {one.name}; leave "
                "one out, or rename it if they differ"
            )
        own[called] = one
    return own


def _as_given(found: dict[str, Any], own: "dict[str, Algorithm]") -> dict[str, Any]:
    """Returns the choices with the names of algorithms as they were given, FILE.py:NAME instead of NAME."""
    given = {one.name: reference for reference, one in own.items()}

    def named(row: dict[str, Any]) -> dict[str, Any]:
        names = {key: given.get(row[key], row[key]) for key in ("algorithm", "table") if key in row}
        twins = {"twins": [given.get(one, one) for one in row["twins"]]} if "twins" in row else {}
        return row | names | twins

    lists = ("candidates", "fastest", "fastest_measured", "fastest_predicted")
    return named(found) | {key: [*map(named, found[key])] for key in lists if key in found}


def _on_host(
    collective: str, num_ranks: int, num_bytes: int, own: "dict[str, Algorithm]", *, measure: bool
) -> Explanation:
    from hocket.answers.host_choices import choices_on_host, entries_of

    check_ranks(num_ranks)
    if measure:
        check_memory(num_ranks, num_bytes, "size, or fewer ranks")
    entries = entries_of(collective, num_ranks, num_bytes)
    found = _as_given(choices_on_host(collective, num_ranks, num_bytes, *entries, measure=measure), own)
    candidates = tuple(Candidate(**row | {"twins": tuple(row["twins"])}) for row in found.pop("candidates"))
    measured, predicted = (
        tuple(SizeRange(**one) for one in found.pop(name)) for name in ("fastest_measured", "fastest_predicted")
    )
    asked = tuple(own)
    return Explanation(
        **found, asked=asked, candidates=candidates, fastest_measured=measured, fastest_predicted=predicted
    )
