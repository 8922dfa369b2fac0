"""The choice of the algorithm if the caller names none. It uses only values that are equal on all ranks.

Three sources decide, in this order: HOCKET_ALGO, which limits what may run; the tuner file; the table below, which has
extra rows for ranks that share cores, and for ranks on several hosts. `hocket show choice` prints the result, and
docs/choosing.md describes it.
"""

import functools
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from hocket.algorithms import ALGORITHMS, Algorithm, GroupsOfRanks, groups_by_host, on_replaced
from hocket.errors import did_you_mean
from hocket.runtime.choice.allowed import Allowed, parse
from hocket.runtime.choice.spelling import algorithm_names
from hocket.runtime.choice.tuner_file import Rule, read_configured
from hocket.runtime.variables import ALGO
from hocket.schedule import find_collective

ORDERS: dict[str, str | None] = {"fast": None, "rank": "rank_order", "invariant": "balanced_tree"}
"""The orders of reduction that a caller may request, each with the label that the certificate must have."""

_ANY = math.inf

# --- the table -----------------------------------------------------------------------------------------------------
#
# A row is (most ranks, most bytes, algorithm); the first row that fits decides. Bytes are those of the whole vector:
# the largest input or output of any rank. Measured with `hocket tune` in shared memory, on 2 cores with up to 8 ranks
# (broadcast 16), so 3 or more ranks shared cores; rows that hold only then are in SHARED. A step costs more than
# several reads of a small vector, and all ranks read what the root stages once. Not every rank knows the sizes of
# gather_v, scatter_v and all_to_all_v, so only the rank count decides for them.

Default = tuple[float, float, str]

# With two ranks and two steps, each rank writes its sums directly into the other's registered memory. That is three to
# seven times faster than one step. In private memory both take about the same time.
_TWO_RANKS: tuple[Default, ...] = ((2, 8 << 10, "direct"), (2, _ANY, "direct_two_shot"))

# If each rank has a core (measured with 2 ranks only), all fold a share; one or two servers would fold everything.
_MORE_RANKS: tuple[Default, ...] = ((_ANY, 32 << 10, "direct"), (_ANY, _ANY, "direct_two_shot"))
_ALL_REDUCE = (*_TWO_RANKS, *_MORE_RANKS)

# If ranks share cores, a fold takes the same time on every rank, and each message costs as much as some KiB. A few
# servers need the fewest messages. Measured with 4 and 8 ranks bound to 2 cores.
_ALL_REDUCE_SHARED: tuple[Default, ...] = (
    *_TWO_RANKS,
    (4, 16 << 10, "direct"),
    (4, 64 << 10, "parameter_server"),
    (4, _ANY, "direct_two_shot"),
    (8, 2 << 10, "direct"),
    (8, 4 << 20, "parameter_server"),
    *_MORE_RANKS,
)

DEFAULTS: dict[str, dict[str, tuple[Default, ...]]] = {
    "fast": {
        "all_reduce": _ALL_REDUCE,
        "all_gather": ((_ANY, _ANY, "direct"),),
        "reduce_scatter": ((_ANY, _ANY, "direct"),),
        "broadcast": ((16, _ANY, "direct"), (_ANY, _ANY, "binomial")),
        "reduce": ((4, 2 << 20, "binomial"), (4, _ANY, "direct"), (_ANY, _ANY, "binomial")),
        "barrier": ((8, _ANY, "direct"), (_ANY, _ANY, "dissemination")),
        "gather": ((_ANY, _ANY, "direct"),),
        "scatter": ((_ANY, _ANY, "direct"),),
        # With many ranks, one message at a time in each direction keeps the memory of slots and caches small.
        "all_to_all": ((32, _ANY, "direct"), (_ANY, 1 << 20, "direct"), (_ANY, _ANY, "pairwise")),
        "all_gather_v": ((_ANY, _ANY, "direct"),),
        "reduce_scatter_v": ((_ANY, _ANY, "direct"),),
        "gather_v": ((_ANY, _ANY, "direct"),),
        "scatter_v": ((_ANY, _ANY, "direct"),),
        "all_to_all_v": ((32, _ANY, "direct"), (_ANY, _ANY, "pairwise")),
    },
    "rank": {  # Other collectives use the rows of "fast".
        "all_reduce": _ALL_REDUCE,
        "reduce_scatter": ((_ANY, _ANY, "direct"),),
        "reduce": ((_ANY, _ANY, "direct"),),
        "reduce_scatter_v": ((_ANY, _ANY, "direct"),),
    },
    "invariant": {  # Two ranks have only one tree, so any algorithm will do.
        "all_reduce": ((2, 4 << 20, "direct"), (_ANY, 4 << 10, "tree"), (_ANY, _ANY, "halving_doubling")),
        "reduce_scatter": ((2, _ANY, "direct"), (_ANY, _ANY, "tree")),
        "reduce": ((_ANY, _ANY, "binomial"),),
        "reduce_scatter_v": ((2, _ANY, "direct"), (_ANY, _ANY, "tree")),
    },
}

SHARED: dict[str, dict[str, tuple[Default, ...]]] = {  # replaces rows above if ranks share cores
    "fast": {
        "all_reduce": _ALL_REDUCE_SHARED,
        "reduce": ((4, 2 << 20, "binomial"), (8, _ANY, "direct"), (_ANY, _ANY, "binomial")),
    },
    "rank": {"all_reduce": _ALL_REDUCE_SHARED},
    "invariant": {},
}

# Ranks on several hosts: a row is (most hosts, most bytes, algorithm), and goes before all rows above. Not measured,
# but counted: what leaves a host takes n / 125 MB/s on 1 Gbit/s, and a step across some 50 us of delay. Between two
# hosts one exchange of leaders carries n each way, as little as any algorithm; but long vectors take all ranks. Among
# more hosts direct steps across send more or to more ranks at once, and logarithmic steps and chains take over.
# A row whose algorithm lacks the label of the order, or would cut the vector into too many shards, is passed over.

_BLOCKS_OF_HOSTS: tuple[Default, ...] = ((16, _ANY, "hierarchical_direct"), (64, 64 << 10, "hierarchical_direct"))
_ONE_ROOT: tuple[Default, ...] = (
    (2, _ANY, "hierarchical_direct"),
    (8, 8 << 10, "hierarchical_direct"),
    (_ANY, 32 << 10, "hierarchical"),
    (_ANY, _ANY, "hierarchical_chain"),
)
_COLLECTED: tuple[Default, ...] = ((_ANY, 256 << 10, "hierarchical_direct"),)  # less messages; as many bytes

HOSTS: dict[str, dict[str, tuple[Default, ...]]] = {
    "fast": {
        "all_reduce": (
            (2, 32 << 10, "hierarchical_leaders"),
            (8, 8 << 10, "hierarchical_leaders"),
            (64, 2 << 10, "hierarchical_leaders"),
            (16, _ANY, "hierarchical_direct"),
            (_ANY, _ANY, "hierarchical"),
            (_ANY, _ANY, "ring"),
        ),
        "all_gather": (*_BLOCKS_OF_HOSTS, (_ANY, _ANY, "hierarchical")),
        "reduce_scatter": (*_BLOCKS_OF_HOSTS, (_ANY, _ANY, "hierarchical")),
        "broadcast": _ONE_ROOT,
        "reduce": _ONE_ROOT,
        "barrier": ((64, _ANY, "hierarchical_leaders"), (_ANY, _ANY, "dissemination")),
        "gather": _COLLECTED,
        "scatter": _COLLECTED,
        "all_to_all": ((_ANY, 64 << 10, "hierarchical"),),
        "all_gather_v": ((_ANY, _ANY, "hierarchical_direct"),),
        "reduce_scatter_v": ((_ANY, _ANY, "hierarchical_direct"),),
    },
    # One rank has to fold all vectors, so they have to cross whole.
    "rank": {"all_reduce": ((_ANY, 8 << 10, "direct"), (_ANY, _ANY, "hierarchical_gather"))},
    "invariant": {},  # The balanced tree joins neighbours first: in hosts of 2, 4, 8 ... ranks it is hierarchical.
}

_MOST_SHARDS = 64  # into which hosts of different sizes cut a vector


# --- what an environment changes -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Policy:
    """The settings of rank 0's environment for all ranks: rules of the tuner file (the first match wins), HOCKET_ALGO.

    shares_cores: whether some rank of the job has no core of its own (cores.have_cores); hocket.init sets it once all
    ranks have sent their cores. hosts: of each rank of the communicator, numbered from 0 in the order of ranks; empty
    if all are on one host. `on_hosts` sets it.
    """

    rules: tuple[Rule, ...] = ()
    algo: tuple[Allowed, ...] = ()
    shares_cores: bool = False
    hosts: tuple[int, ...] = ()

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], *, shares_cores: bool = False) -> "Policy":
        """Reads HOCKET_ALGO and the tuner file. Raises ValueError, which says what is allowed, for a bad one."""
        return cls(read_configured(environ), parse(environ.get(ALGO, "")), shares_cores)

    def table_alone(self) -> "Policy":
        """Returns the policy of the same ranks without HOCKET_ALGO and without a tuner file."""
        return Policy(shares_cores=self.shares_cores, hosts=self.hosts)

    def on_hosts(self, hosts: Sequence[int]) -> "Policy":
        """Returns the policy for a communicator, by the host of each of its ranks; any numbers will do."""
        numbers = {host: number for number, host in enumerate(dict.fromkeys(hosts))}
        return replace(self, hosts=tuple(numbers[host] for host in hosts) if len(numbers) > 1 else ())

    @property
    def num_hosts(self) -> int:
        """The number of hosts on which the ranks of the communicator are."""
        return max(self.hosts, default=0) + 1

    def groups_for(self, algorithm: Algorithm) -> GroupsOfRanks | None:
        """Returns the groups in which an algorithm works: the ranks of each host; None if its default applies."""
        return groups_by_host(self.hosts) if self.hosts and algorithm.groups else None

    def encode(self) -> str:
        """Returns the policy as JSON, for the other ranks."""
        return msgspec.json.encode(self).decode()

    @staticmethod
    def decode(text: str) -> "Policy":
        """Returns the policy that `encode` wrote."""
        return _decoder.decode(text)

    def allowed(self, collective: str) -> Allowed | None:
        """Returns the list of HOCKET_ALGO for a collective, else the list for all, else None."""
        by_name = {one.collective: one for one in self.algo}
        return by_name.get(collective, by_name.get(""))

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        # It is part of the key of every call, so it is computed once.
        return hash((self.rules, self.algo, self.shares_cores, self.hosts))


_NO_POLICY = Policy()
_decoder = msgspec.json.Decoder(Policy)  # made at import: ranks that are threads would race to make it


# --- the choice ----------------------------------------------------------------------------------------------------


@functools.lru_cache(4096)  # programs repeat their sizes, and this is on the path of every call
def choose(collective: str, num_ranks: int, num_bytes: int, order: str = "fast", policy: Policy = _NO_POLICY) -> str:
    """Returns the name of the algorithm for a call; its certificate has the label that the order needs.

    num_bytes: the largest input or output of any rank; it is ignored for collectives whose sizes not every rank knows.
    Rules of a tuner file whose algorithm lacks the label are skipped. Raises ValueError if HOCKET_ALGO leaves no
    algorithm, or none with the label.
    """
    label = required_label(order)
    num_bytes = num_bytes if find_collective(collective).known_by_all else 0
    by_table = _default(collective, num_ranks, num_bytes, order, policy)
    allowed = policy.allowed(collective)
    names = [name for name in algorithm_names(collective) if _serves(collective, name, num_ranks)]
    if allowed is not None:
        left = [name for name in allowed.names_for(collective) if name in names]
        if not left and allowed.binds(collective):
            raise ValueError(
                f"{collective}: {ALGO} allows {allowed}, which leaves no algorithm for {num_ranks} ranks; "
                f"expected at least one of {fitting(collective, num_ranks, (order,))}"
            )
        names = left or names
    for rule in policy.rules:  # Tuner files have no orders: a rule whose algorithm lacks the label does not apply.
        fits = rule.matches(collective, num_ranks, num_bytes, policy.num_hosts) and rule.algorithm in names
        if fits and has_label(collective, rule.algorithm, num_ranks, order, policy):
            return rule.algorithm
    if by_table in names:
        return by_table
    chosen = next((name for name in names if has_label(collective, name, num_ranks, order, policy)), None)
    if chosen is None:
        raise ValueError(
            f"{collective}: {ALGO} allows {allowed}, without the label {label} for {num_ranks} ranks, which "
            f"order={order!r} needs; expected one of {fitting(collective, num_ranks, (order,), policy)}"
        )
    return chosen


on_replaced.append(choose.cache_clear)  # the new algorithm may support other rank counts or have other labels


def choose_by(
    collective: str, num_ranks: int, num_bytes: int, order: str = "fast", policy: Policy = _NO_POLICY
) -> tuple[str, str]:
    """Returns the result of `choose`, and what decided: "table", "tuner file" or HOCKET_ALGO. Raises as `choose`."""
    chosen = choose(collective, num_ranks, num_bytes, order, policy)
    if chosen == choose(collective, num_ranks, num_bytes, order, policy.table_alone()):
        return chosen, "table"
    without = replace(policy, rules=())
    by_rule = policy.rules and choose(collective, num_ranks, num_bytes, order, without) != chosen
    return chosen, "tuner file" if by_rule else ALGO


def required_label(order: str) -> str | None:
    """Returns the label that a certificate must have for this order. Raises ValueError if there is no such order."""
    if order not in ORDERS:
        raise ValueError(
            f"expected order to be one of {', '.join(ORDERS)}; found {order!r}{did_you_mean(order, ORDERS)}"
        )
    return ORDERS[order]


def has_label(collective: str, name: str, num_ranks: int, order: str, policy: Policy = _NO_POLICY) -> bool:
    """Returns whether a registered algorithm reduces in this order, for all roots; its certificate says so."""
    label, kind, algorithm = required_label(order), find_collective(collective), ALGORITHMS[collective, name]
    if label is None or not kind.counts_contributions:
        return True
    groups = policy.groups_for(algorithm)
    if label in algorithm.labels_in(algorithm.layout(num_ranks, groups=groups)):
        return True
    roots = range(num_ranks if kind.rooted else 1)
    return all(label in _labels(algorithm, num_ranks, root, groups) for root in roots)


@functools.lru_cache(1024)
def _labels(algorithm: Algorithm, num_ranks: int, root: int, groups: GroupsOfRanks | None) -> frozenset[str]:
    return algorithm.verify(num_ranks, root, groups=groups, laws=(4,)).labels


def _default(collective: str, num_ranks: int, num_bytes: int, order: str, policy: Policy) -> str:
    for hosts, limit, name in host_rows(collective, order) if policy.hosts else ():
        fits = policy.num_hosts <= hosts and num_bytes <= limit and _works_on(policy.hosts, collective, name)
        if fits and has_label(collective, name, num_ranks, order, policy):
            return name
    entries = defaults(order, shares_cores=policy.shares_cores)[collective]
    return next(name for ranks, limit, name in entries if num_ranks <= ranks and num_bytes <= limit)


def host_rows(collective: str, order: str) -> tuple[Default, ...]:
    """Returns the rows of an order for ranks on several hosts; after them those of `defaults` apply."""
    required_label(order)
    return HOSTS[order if collective in DEFAULTS[order] else "fast"].get(collective, ())


def _works_on(hosts: tuple[int, ...], collective: str, name: str) -> bool:
    """Returns False where hosts of different sizes would cut the vector of an all_reduce into too many shards."""
    if collective != "all_reduce" or name not in ("hierarchical", "hierarchical_direct"):
        return True
    return math.lcm(*Counter(hosts).values()) <= _MOST_SHARDS


def defaults(order: str, *, shares_cores: bool) -> dict[str, tuple[Default, ...]]:
    """Returns the table of an order for all collectives, with or without the rows for ranks that share cores."""
    required_label(order)
    tables = [DEFAULTS[one] | (SHARED[one] if shares_cores else {}) for one in ("fast", order)]
    return tables[0] | tables[1]


def _serves(collective: str, name: str, num_ranks: int) -> bool:
    one = ALGORITHMS.get((collective, name))
    return one is not None and one.allows(num_ranks)


def fitting(collective: str, num_ranks: int, orders: Collection[str], policy: Policy = _NO_POLICY) -> str:
    """Returns the algorithms that support this rank count in one of these orders, as text."""
    return ", ".join(
        name
        for name in sorted(algorithm_names(collective))
        if _serves(collective, name, num_ranks)
        and any(has_label(collective, name, num_ranks, order, policy) for order in orders)
    )
