"""Names of algorithms as NCCL spells them, and as Hocket does. Case and underscores make no difference."""

from hocket.algorithms import ALGORITHMS
from hocket.schedule import plain_spelling

ALGORITHMS_OF_NCCL = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")

# One idea under two names: what NCCL calls the tree of a rooted collective has a name of its own here.
_HERE = {("broadcast", "tree"): "binomial", ("reduce", "tree"): "binomial"}


def find_algorithm_name(text: str, collective: str) -> str | None:
    """The algorithm for this collective that is meant, None if there is none. NCCL's name stands behind one's own."""
    names = algorithm_names(collective)
    plain = next((name for name in names if plain_spelling(name) == plain_spelling(text)), None)
    return text if text in names else plain or _HERE.get((collective, plain_spelling(text)))


def algorithm_names(collective: str) -> list[str]:
    """All algorithms for a collective, built-in ones first."""
    return [name for kind, name in list(ALGORITHMS) if kind == collective]


def is_algorithm_of_nccl(text: str) -> bool:
    """Whether NCCL has an algorithm of this name, be it one that is unknown here."""
    return any(plain_spelling(name) == plain_spelling(text) for name in ALGORITHMS_OF_NCCL)


def algorithm_in_nccl(collective: str, algorithm: str) -> str:
    """How NCCL names an algorithm, as far as it has it; else its own name."""
    for (kind, theirs), ours in _HERE.items():
        if (kind, ours) == (collective, algorithm) and find_algorithm_name(theirs, collective) == algorithm:
            return theirs
    return algorithm
