"""One hash of 64 bits, used wherever contents are compared by number."""

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]


def mix(bits: Hashes) -> Hashes:
    """The finaliser of splitmix64 (Steele, Lea and Flood 2014): a bijection that leaves no pattern."""
    bits = (bits ^ bits >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ bits >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return bits ^ bits >> np.uint64(31)
