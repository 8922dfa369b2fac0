"""Names of collectives and algorithms as NCCL spells them, and as Hocket does.

Upper and lower case and underscores make no difference: AllReduce, allreduce and all_reduce are one.
"""

from hocket.algorithms import ALGORITHMS
from hocket.schedule import COLLECTIVES

ALGORITHMS_OF_NCCL = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")

# One idea under two names: what NCCL calls the tree of a rooted collective has a name of its own here.
_HERE = {("broadcast", "tree"): "binomial", ("reduce", "tree"): "binomial"}


def find_collective_name(text: str) -> str | None:
    """The collective that is meant, None if there is none."""
    return next((name for name in COLLECTIVES if _plain(name) == _plain(text)), None)


def find_algorithm_name(text: str, collective: str) -> str | None:
    """The algorithm for this collective that is meant, None if there is none. NCCL's name stands behind one's own."""
    names = algorithm_names(collective)
    plain = next((name for name in names if _plain(name) == _plain(text)), None)
    return text if text in names else plain or _HERE.get((collective, _plain(text)))


def algorithm_names(collective: str) -> list[str]:
    """All algorithms for a collective, built-in ones first."""
    return [name for kind, name in list(ALGORITHMS) if kind == collective]


def is_algorithm_of_nccl(text: str) -> bool:
    """Whether NCCL has an algorithm of this name, be it one that is unknown here."""
    return any(_plain(name) == _plain(text) for name in ALGORITHMS_OF_NCCL)


def collective_in_nccl(collective: str) -> str:
    """How NCCL spells a collective: allreduce."""
    return _plain(collective)


def algorithm_in_nccl(collective: str, algorithm: str) -> str:
    """How NCCL names an algorithm, as far as it has it; else its own name."""
    for (kind, theirs), ours in _HERE.items():
        if (kind, ours) == (collective, algorithm) and find_algorithm_name(theirs, collective) == algorithm:
            return theirs
    return algorithm


def _plain(text: str) -> str:
    return text.replace("_", "").lower()
