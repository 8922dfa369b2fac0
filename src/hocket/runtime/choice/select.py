"""Which algorithm runs, when the caller does not say: read only with what is equal on all ranks.

Three things decide, the first before the second: HOCKET_ALGO, which narrows what may run; the tuner file; and the table
below, which is for everybody who has set neither, and has rows of its own for ranks that share cores. `hocket show
choice` prints the outcome, and docs/choosing.md tells of it.
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec

from hocket.algorithms import ALGORITHMS, Algorithm, on_replaced
from hocket.runtime.choice.allowed import VARIABLE, Allowed, parse
from hocket.runtime.choice.spelling import algorithm_names
from hocket.runtime.choice.tuner_file import Rule, read_configured
from hocket.schedule import find_collective

ORDERS: dict[str, str | None] = {"fast": None, "rank": "rank_order", "invariant": "balanced_tree"}
"""The orders of reduction that a caller may ask for, and the label of the certificate that each needs."""

_ANY = math.inf

# --- the table -----------------------------------------------------------------------------------------------------
#
# For each order and collective, from the top: up to so many ranks, up to so many bytes (of the whole vector, as the
# rank that holds most has it as input or output), this algorithm. Measured with `hocket tune` in shared memory, on 2
# cores and up to 8 ranks, broadcast to 16: a step costs more than reading a small vector several times, and what the
# root has staged once, all others read. So from 3 ranks on they shared cores; SHARED has what holds for that alone.
# gather_v, scatter_v and all_to_all_v, whose sizes not every rank knows, go by rank count alone.

Default = tuple[float, float, str]

# Between two ranks, two steps let each write into the other's registered memory what it has just added: three to seven
# times faster than one step. In private memory both take about the same time.
_TWO_RANKS: tuple[Default, ...] = ((2, 8 << 10, "direct"), (2, _ANY, "direct_two_shot"))

# With a core each (measured with 2 ranks only) all fold a share, while one or two servers would fold everything.
_MORE_RANKS: tuple[Default, ...] = ((_ANY, 32 << 10, "direct"), (_ANY, _ANY, "direct_two_shot"))
_ALL_REDUCE = (*_TWO_RANKS, *_MORE_RANKS)

# Where ranks share cores, a fold takes as long whoever does it, and each message that one has to look for costs it as
# much as some KiB: few servers have the fewest. Measured with 4 and 8 ranks bound to 2 cores.
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
        # From many ranks on, one message at a time to and from each keeps the memory of slots and caches small.
        "all_to_all": ((32, _ANY, "direct"), (_ANY, 1 << 20, "direct"), (_ANY, _ANY, "pairwise")),
        "all_gather_v": ((_ANY, _ANY, "direct"),),
        "reduce_scatter_v": ((_ANY, _ANY, "direct"),),
        "gather_v": ((_ANY, _ANY, "direct"),),
        "scatter_v": ((_ANY, _ANY, "direct"),),
        "all_to_all_v": ((32, _ANY, "direct"), (_ANY, _ANY, "pairwise")),
    },
    "rank": {  # Collectives that are not named here are those of "fast".
        "all_reduce": _ALL_REDUCE,
        "reduce_scatter": ((_ANY, _ANY, "direct"),),
        "reduce": ((_ANY, _ANY, "direct"),),
        "reduce_scatter_v": ((_ANY, _ANY, "direct"),),
    },
    "invariant": {  # Two ranks have one tree, whoever folds.
        "all_reduce": ((2, 4 << 20, "direct"), (_ANY, 4 << 10, "tree"), (_ANY, _ANY, "halving_doubling")),
        "reduce_scatter": ((2, _ANY, "direct"), (_ANY, _ANY, "tree")),
        "reduce": ((_ANY, _ANY, "binomial"),),
        "reduce_scatter_v": ((2, _ANY, "direct"), (_ANY, _ANY, "tree")),
    },
}

SHARED: dict[str, dict[str, tuple[Default, ...]]] = {  # in the place of rows above, where ranks share cores
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
    """What the environment of rank 0 fixes for all ranks: the tuner file's rules, first match wins; HOCKET_ALGO.

    shares_cores: whether any two ranks of the job share a core (cores.have_cores), so that one has none of its own;
    hocket.init knows it once all have said where they run.
    """

    rules: tuple[Rule, ...] = ()
    algo: tuple[Allowed, ...] = ()
    shares_cores: bool = False

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], *, shares_cores: bool = False) -> "Policy":
        """From HOCKET_ALGO and the tuner file. ValueError, saying what there is, if either cannot be understood."""
        return cls(read_configured(environ), parse(environ.get(VARIABLE, "")), shares_cores)

    def table_alone(self) -> "Policy":
        """What holds for the same ranks where the environment fixes nothing."""
        return Policy(shares_cores=self.shares_cores)

    def encode(self) -> str:
        """As JSON, for the other ranks."""
        return msgspec.json.encode(self).decode()

    @staticmethod
    def decode(text: str) -> "Policy":
        """The reverse of encode."""
        return _decoder.decode(text)

    def allowed(self, collective: str) -> Allowed | None:
        """What HOCKET_ALGO says of a collective: the list for it, else that for all, else None."""
        by_name = {one.collective: one for one in self.algo}
        return by_name.get(collective, by_name.get(""))

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        # Of every call's key: counted once.
        return hash((self.rules, self.algo, self.shares_cores))


_NO_POLICY = Policy()
_decoder = msgspec.json.Decoder(Policy)  # made here: ranks that are threads would make what it needs at once


# --- the choice ----------------------------------------------------------------------------------------------------


@functools.lru_cache(4096)  # programs repeat their sizes, and this is on the path of every call
def choose(collective: str, num_ranks: int, num_bytes: int, order: str = "fast", policy: Policy = _NO_POLICY) -> str:
    """The name of the algorithm for a call among so many ranks; its certificate has the label that the order needs.

    num_bytes is what the rank that holds most has as input or output; it does not matter where not every rank knows
    all sizes. Rules of a tuner file without the label are passed over; ValueError if HOCKET_ALGO leaves no algorithm,
    or none with the label.
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
                f"{collective}: {VARIABLE} allows {allowed}, which leaves no algorithm for {num_ranks} ranks; "
                f"expected at least one of {_fitting(collective, num_ranks, order)}"
            )
        names = left or names
    for rule in policy.rules:  # They know nothing of orders: one that does not keep this one is not meant.
        fits = rule.matches(collective, num_ranks, num_bytes) and rule.algorithm in names
        if fits and has_label(collective, rule.algorithm, num_ranks, order):
            return rule.algorithm
    if by_table in names:
        return by_table
    chosen = next((name for name in names if has_label(collective, name, num_ranks, order)), None)
    if chosen is None:
        raise ValueError(
            f"{collective}: {VARIABLE} allows {allowed}, without the label {label} for {num_ranks} ranks, which "
            f"order={order!r} needs; expected one of {_fitting(collective, num_ranks, order)}"
        )
    return chosen


on_replaced.append(choose.cache_clear)  # it may be for other rank counts, or have other labels


def choose_by(
    collective: str, num_ranks: int, num_bytes: int, order: str = "fast", policy: Policy = _NO_POLICY
) -> tuple[str, str]:
    """What `choose` says, and who decided: "table", "tuner file" or "HOCKET_ALGO". ValueError as there."""
    chosen = choose(collective, num_ranks, num_bytes, order, policy)
    if chosen == choose(collective, num_ranks, num_bytes, order, policy.table_alone()):
        return chosen, "table"
    without = replace(policy, rules=())
    by_rule = policy.rules and choose(collective, num_ranks, num_bytes, order, without) != chosen
    return chosen, "tuner file" if by_rule else VARIABLE


def required_label(order: str) -> str | None:
    """The label that an algorithm's certificate must have for this order; ValueError if there is no such order."""
    if order not in ORDERS:
        raise ValueError(f"expected order to be one of {', '.join(ORDERS)}; found {order!r}")
    return ORDERS[order]


def has_label(collective: str, name: str, num_ranks: int, order: str) -> bool:
    """Whether a registered algorithm reduces in this order among so many ranks: by its certificate, for all roots."""
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
    """The table of an order, for all collectives, where ranks share cores or where each has one."""
    required_label(order)
    tables = [DEFAULTS[one] | (SHARED[one] if shares_cores else {}) for one in ("fast", order)]
    return tables[0] | tables[1]


def _serves(collective: str, name: str, num_ranks: int) -> bool:
    one = ALGORITHMS.get((collective, name))
    return one is not None and one.allows(num_ranks)


def _fitting(collective: str, num_ranks: int, order: str) -> str:
    """In words, the algorithms that do this rank count in this order."""
    return ", ".join(
        name
        for name in sorted(algorithm_names(collective))
        if _serves(collective, name, num_ranks) and has_label(collective, name, num_ranks, order)
    )
