"""The choice of the algorithm if the caller names none. It uses only values that are equal on all ranks.

Three sources decide, in this order: HOCKET_ALGO, which limits what may run; the tuner file; the table below, which has
extra rows for ranks that share cores. `hocket show choice` prints the result, and docs/choosing.md describes it.
"""

import functools
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import msgspec

from hocket.algorithms import ALGORITHMS, Algorithm, on_replaced
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


# --- what an environment changes -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Policy:
    """The settings of rank 0's environment for all ranks: rules of the tuner file (the first match wins), HOCKET_ALGO.

    shares_cores: whether some rank of the job has no core of its own (cores.have_cores); hocket.init sets it once all
    ranks have sent their cores.
    """

    rules: tuple[Rule, ...] = ()
    algo: tuple[Allowed, ...] = ()
    shares_cores: bool = False

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], *, shares_cores: bool = False) -> "Policy":
        """Reads HOCKET_ALGO and the tuner file. Raises ValueError, which says what is allowed, for a bad one."""
        return cls(read_configured(environ), parse(environ.get(ALGO, "")), shares_cores)

    def table_alone(self) -> "Policy":
        """Returns the policy of the same ranks without HOCKET_ALGO and without a tuner file."""
        return Policy(shares_cores=self.shares_cores)

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
        return hash((self.rules, self.algo, self.shares_cores))


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
    by_table = _default(collective, num_ranks, num_bytes, order, policy.shares_cores)
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
        fits = rule.matches(collective, num_ranks, num_bytes) and rule.algorithm in names
        if fits and has_label(collective, rule.algorithm, num_ranks, order):
            return rule.algorithm
    if by_table in names:
        return by_table
    chosen = next((name for name in names if has_label(collective, name, num_ranks, order)), None)
    if chosen is None:
        raise ValueError(
            f"{collective}: {ALGO} allows {allowed}, without the label {label} for {num_ranks} ranks, which "
            f"order={order!r} needs; expected one of {fitting(collective, num_ranks, (order,))}"
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


def has_label(collective: str, name: str, num_ranks: int, order: str) -> bool:
    """Returns whether a registered algorithm reduces in this order, for all roots; its certificate says so."""
    label, kind, algorithm = required_label(order), find_collective(collective), ALGORITHMS[collective, name]
    if label is None or not kind.counts_contributions or label in algorithm.labels:
        return True
    roots = range(num_ranks if kind.rooted else 1)
    return all(label in _labels(algorithm, num_ranks, root) for root in roots)


@functools.lru_cache(1024)
def _labels(algorithm: Algorithm, num_ranks: int, root: int) -> frozenset[str]:
    return algorithm.verify(num_ranks, root, laws=(4,)).labels


def _default(collective: str, num_ranks: int, num_bytes: int, order: str, shares_cores: bool) -> str:
    entries = defaults(order, shares_cores=shares_cores)[collective]
    return next(name for ranks, limit, name in entries if num_ranks <= ranks and num_bytes <= limit)


def defaults(order: str, *, shares_cores: bool) -> dict[str, tuple[Default, ...]]:
    """Returns the table of an order for all collectives, with or without the rows for ranks that share cores."""
    required_label(order)
    tables = [DEFAULTS[one] | (SHARED[one] if shares_cores else {}) for one in ("fast", order)]
    return tables[0] | tables[1]


def _serves(collective: str, name: str, num_ranks: int) -> bool:
    one = ALGORITHMS.get((collective, name))
    return one is not None and one.allows(num_ranks)


def fitting(collective: str, num_ranks: int, orders: Collection[str]) -> str:
    """Returns the algorithms that support this rank count in one of these orders, as text."""
    return ", ".join(
        name
        for name in sorted(algorithm_names(collective))
        if _serves(collective, name, num_ranks)
        and any(has_label(collective, name, num_ranks, order) for order in orders)
    )
