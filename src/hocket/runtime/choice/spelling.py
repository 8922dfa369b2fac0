"""Translates names of collectives and algorithms between NCCL's spelling and Hocket's.

Case and underscores are ignored: AllReduce, allreduce and all_reduce are the same.
"""

from hocket.algorithms import ALGORITHMS
from hocket.schedule import COLLECTIVES

ALGORITHMS_OF_NCCL = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")

# NCCL's "tree" of a rooted collective is Hocket's "binomial".
_HERE = {("broadcast", "tree"): "binomial", ("reduce", "tree"): "binomial"}


def find_collective_name(text: str) -> str | None:
    """Returns Hocket's name of the collective in the text, None if there is none."""
    return next((name for name in COLLECTIVES if _plain(name) == _plain(text)), None)


def find_algorithm_name(text: str, collective: str) -> str | None:
    """Returns the algorithm of this collective in the text, None if there is none; Hocket's names go before NCCL's."""
    names = algorithm_names(collective)
    plain = next((name for name in names if _plain(name) == _plain(text)), None)
    return text if text in names else plain or _HERE.get((collective, _plain(text)))


def algorithm_names(collective: str) -> list[str]:
    """Returns the names of all algorithms of a collective, built-in ones first."""
    return [name for kind, name in list(ALGORITHMS) if kind == collective]


def is_algorithm_of_nccl(text: str) -> bool:
    """Returns whether NCCL has an algorithm of this name, even if Hocket has none."""
    return any(_plain(name) == _plain(text) for name in ALGORITHMS_OF_NCCL)


def collective_in_nccl(collective: str) -> str:
    """Returns NCCL's spelling of a collective, such as "allreduce"."""
    return _plain(collective)


def algorithm_in_nccl(collective: str, algorithm: str) -> str:
    """Returns NCCL's name of an algorithm; Hocket's name if NCCL has no such algorithm."""
    for (kind, theirs), ours in _HERE.items():
        if (kind, ours) == (collective, algorithm) and find_algorithm_name(theirs, collective) == algorithm:
            return theirs
    return algorithm


def _plain(text: str) -> str:
    return text.replace("_", "").lower()
