"""Translates names of algorithms between NCCL's spelling and Hocket's. Case and underscores are ignored."""

from hocket.algorithms import ALGORITHMS
from hocket.schedule import plain_spelling

ALGORITHMS_OF_NCCL = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")

# NCCL's "tree" of a rooted collective is Hocket's "binomial".
_HERE = {("broadcast", "tree"): "binomial", ("reduce", "tree"): "binomial"}


def find_algorithm_name(text: str, collective: str) -> str | None:
    """Returns the algorithm of this collective in the text, None if there is none; Hocket's names go before NCCL's."""
    names = algorithm_names(collective)
    plain = next((name for name in names if plain_spelling(name) == plain_spelling(text)), None)
    return text if text in names else plain or _HERE.get((collective, plain_spelling(text)))


def algorithm_names(collective: str) -> list[str]:
    """Returns the names of all algorithms of a collective, built-in ones first."""
    return [name for kind, name in list(ALGORITHMS) if kind == collective]


def is_algorithm_of_nccl(text: str) -> bool:
    """Returns whether NCCL has an algorithm of this name, even if Hocket has none."""
    return any(plain_spelling(name) == plain_spelling(text) for name in ALGORITHMS_OF_NCCL)


def algorithm_in_nccl(collective: str, algorithm: str) -> str:
    """Returns NCCL's name of an algorithm; Hocket's name if NCCL has no such algorithm."""
    for (kind, theirs), ours in _HERE.items():
        if (kind, ours) == (collective, algorithm) and find_algorithm_name(theirs, collective) == algorithm:
            return theirs
    return algorithm
