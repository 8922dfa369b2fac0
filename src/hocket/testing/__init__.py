"""The tools with which Hocket tests itself, for programs that use or extend it.

    check_schedule    a schedule or algorithm: the proof, and its plans run in random orders against the reference
    check_transport   one rank's side of the contract that every transport keeps (csrc/transport/transport.h)
    run_ranks         a function as several ranks, in processes or threads
    paced_link        a block in which ranks are joined by slow links: communication that leaves the CPU alone

Call these from your own tests.
"""

from hocket.runtime import paced_link, run_ranks
from hocket.testing.schedules import assert_same_bits, check_schedule, random_block_lengths, random_inputs
from hocket.testing.transports import check_transport

__all__ = [
    "assert_same_bits",
    "check_schedule",
    "check_transport",
    "paced_link",
    "random_block_lengths",
    "random_inputs",
    "run_ranks",
]
