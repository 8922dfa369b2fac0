"""Hierarchical with few steps: each level in one or two direct steps, for ranks that share memory inside hosts.

The default among ranks on several hosts, where a step across costs much more than one inside. A chain across the groups
carries long vectors that have one source or one target.
"""

from hocket.algorithms.layout import Layout
from hocket.algorithms.levels import Groups, hierarchical, near_square, place_of_root
from hocket.algorithms.programs.chain import chain_broadcast, chain_reduce
from hocket.algorithms.programs.direct import (
    direct_all_gather,
    direct_all_reduce,
    direct_broadcast,
    direct_gather,
    direct_reduce,
    direct_reduce_scatter,
    direct_two_shot,
)
from hocket.algorithms.programs.hierarchical import sent_broadcasting, sent_gathering
from hocket.algorithms.registry import ALGORITHMS, algorithm
from hocket.schedule import Builder

_EQUAL_BITS = ("same_on_all_ranks", "size_invariant")
_TWO_STEPS = "min(M - 1, 1) + min(G - 1, 1)"
_CHAINED = "min(M - 1, 1) + G - 1"
_MAGPIE = """Kielmann, Hofman, Bal, Plaat and Bhoedjang, "MagPIe: MPI's collective communication operations for
      clustered wide area systems", 1999"""


def _sent_collecting(p: int, root: int, groups: Groups) -> float:
    """the largest group but the root's, which goes on as a whole; or one block"""
    home, _ = place_of_root(Layout(p, root, groups=groups))
    others = (size for group, size in enumerate(groups) if group != home)
    return max(others, default=min(p - 1, 1)) / p if p > 1 else 0.0


def _sent_in_rank_order(p: int, groups: Groups) -> float:
    """2 * (P - 1) / P where all groups have the same size; else more, because some ranks do the work of several"""
    gathering = sent_gathering(direct_all_gather, direct_all_gather)
    return float((p - 1) / p + gathering(p, groups))


# --- all_reduce ----------------------------------------------------------------------------------------------------

hierarchical_direct_all_reduce = algorithm(
    "all_reduce",
    name="hierarchical_direct",
    steps="2 * min(M - 1, 1) + 2 * min(G - 1, 1)",
    sent="2 - 2 / (G * M)",
    labels=_EQUAL_BITS,
    doc="""Each rank of a group reads one shard of the vector from all others and sums it. All ranks of a group then sum
    their shards across the groups at once, in two shots; and each rank reads the other shards from its group.

    Best: large N on up to some ten hosts, with shared memory inside them: 2 * (G - 1) / G * N leaves a host, which is
      the least, and all its ranks send at once
    Ranks: any
    Reference: Jia et al., "Highly scalable deep learning training system with mixed-precision", 2018

    All ranks fold a shard in the same order: the groups one by one, each in the order of its ranks.
    """,
)(hierarchical(direct_reduce_scatter, direct_two_shot, direct_all_gather))


hierarchical_leaders = algorithm(
    "all_reduce",
    name="hierarchical_leaders",
    steps="2 * min(M - 1, 1) + min(G - 1, 1)",
    sent="G + M - 2",
    labels=_EQUAL_BITS,
    doc=f"""The first rank of each group sums the vectors of its group, exchanges this sum directly with the first ranks
    of all other groups, and hands the result to its group: one delay across the groups.

    Best: small N on up to some ten hosts, where the delay between hosts decides
    Ranks: any
    Reference: {_MAGPIE}
    """,
)(hierarchical(direct_reduce, direct_all_reduce, direct_broadcast))


hierarchical_gather = algorithm(
    "all_reduce",
    name="hierarchical_gather",
    steps="2 * min(M - 1, 1) + 2 * min(G - 1, 1) - min(M - 1, G - 1, 1)",
    sent=_sent_in_rank_order,
    labels=("same_on_all_ranks", "rank_order", "size_invariant"),
    doc="""Each rank reads one chunk from all other ranks and folds it, from rank 0 upwards. The sums enter every group
    once, by the all_gather of hierarchical_direct.

    Best: large N on several hosts where the order of reduction must be that of the ranks
    Ranks: any
    Reference: folklore

    Every contribution has to reach the one rank that folds it, so more goes across than where groups sum first.
    """,
)(direct_reduce_scatter.then(hierarchical(direct_all_gather, direct_all_gather)))


@algorithm(
    "barrier",
    name="hierarchical_leaders",
    chunks="1",
    steps="2 * min(M - 1, 1) + min(G - 1, 1)",
    sent="G + M - 2",
    groups=near_square,
)
def hierarchical_leaders_barrier(schedule: Builder) -> None:
    """The all_reduce of this name, of one token.

    Best: several hosts, where the delay between them decides
    Ranks: any
    Reference: Kielmann, Hofman, Bal, Plaat and Bhoedjang, "MagPIe: MPI's collective communication operations for
      clustered wide area systems", 1999
    """
    hierarchical_leaders(schedule)


# --- blocks --------------------------------------------------------------------------------------------------------

for _kind in ("all_gather", "all_gather_v"):
    algorithm(
        _kind,
        name="hierarchical_direct",
        steps=_TWO_STEPS,
        sent=sent_gathering(direct_all_gather, direct_all_gather),
        doc="""Counterparts send each other their blocks across the groups. Then each rank sends all that it has to all
    others of its group.

    Best: up to some ten hosts, with shared memory inside them: every block enters a host once, and all ranks of a host
      send at once
    Ranks: any
    Reference: HCCL's hierarchical algorithms
    """,
    )(hierarchical(*[ALGORITHMS[_kind, "direct"]] * 2))

for _kind in ("reduce_scatter", "reduce_scatter_v"):
    algorithm(
        _kind,
        name="hierarchical_direct",
        steps=_TWO_STEPS,
        sent="(P - 1) / P",
        labels=_EQUAL_BITS,
        doc="""Each rank sums what its group has for its counterparts. Then the counterparts send each other these sums,
    and each folds those for itself.

    Best: up to some ten hosts, with shared memory inside them: every block leaves a host once, and all ranks of a host
      send at once
    Ranks: any
    Reference: HCCL's hierarchical algorithms
    """,
    )(hierarchical(*[ALGORITHMS[_kind, "direct"]] * 2))


# --- one root ------------------------------------------------------------------------------------------------------

hierarchical_direct_broadcast = algorithm(
    "broadcast",
    name="hierarchical_direct",
    steps=_TWO_STEPS,
    sent=sent_broadcasting(direct_broadcast, direct_broadcast),
    doc=f"""The root sends the vector to its counterpart in every group, and each of these to its group.

    Best: small N, or two hosts
    Ranks: any
    Reference: {_MAGPIE}
    """,
)(hierarchical(direct_broadcast, direct_broadcast))


hierarchical_direct_reduce = algorithm(
    "reduce",
    name="hierarchical_direct",
    steps=_TWO_STEPS,
    sent="min(P - 1, 1)",
    labels=_EQUAL_BITS,
    doc=f"""The root and its counterpart in every group sum the vectors of their groups; the root then sums these.

    Best: small N, or two hosts
    Ranks: any
    Reference: {_MAGPIE}
    """,
)(hierarchical(direct_reduce, direct_reduce))


hierarchical_chain_broadcast = algorithm(
    "broadcast",
    name="hierarchical_chain",
    steps=_CHAINED,
    sent=sent_broadcasting(chain_broadcast, direct_broadcast),
    doc="""The vector goes from the root to its counterpart in the next group, from there to the one after it, and so
    on; each sends it to its group. Many pieces are on their way at once.

    Best: large N on several hosts: N enters every host once, and leaves every host at most once
    Ranks: any
    Reference: folklore; a chain is Open MPI's pipeline
    """,
)(hierarchical(chain_broadcast, direct_broadcast))


hierarchical_chain_reduce = algorithm(
    "reduce",
    name="hierarchical_chain",
    steps=_CHAINED,
    sent="min(P - 1, 1)",
    labels=_EQUAL_BITS,
    doc="""The root and its counterpart in every group sum the vectors of their groups. The sum of these grows from
    group to group until it reaches the root. Many pieces are on their way at once.

    Best: large N on several hosts: N leaves every host once, and enters every host at most once
    Ranks: any
    Reference: folklore; a chain is Open MPI's pipeline
    """,
)(hierarchical(direct_reduce, chain_reduce))


hierarchical_direct_gather = algorithm(
    "gather",
    name="hierarchical_direct",
    steps=_TWO_STEPS,
    sent=_sent_collecting,
    doc=f"""The root and its counterpart in every group collect the blocks of their groups. Each counterpart then sends
    its blocks to the root in one message.

    Best: small N and many ranks, because the root receives G - 1 messages from other hosts
    Ranks: any
    Reference: {_MAGPIE}

    Even blocks only, because a counterpart holds blocks whose sizes it would not know.
    """,
)(hierarchical(direct_gather, direct_gather))


hierarchical_direct_scatter = algorithm(
    "scatter",
    name="hierarchical_direct",
    steps=_TWO_STEPS,
    sent="(P - 1) / P",
    doc=f"""The gather run backwards: the root sends its counterpart in every group the blocks of this group, and each
    of them hands them out.

    Best: small N and many ranks, because the root sends G - 1 messages to other hosts
    Ranks: any
    Reference: {_MAGPIE}

    Even blocks only, as for gather.
    """,
)(hierarchical_direct_gather.reversed())
