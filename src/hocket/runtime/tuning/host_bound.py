"""Lower bounds: seconds that a collective takes at least on this machine, whatever the algorithm.

A bound says what can be reached here, and is never fitted to what Hocket takes. It counts, over all p ranks together,
with n the bytes of the largest input or output of a rank:

- loads: each byte of input that has to be somewhere else or in a sum is read at least once. A sum needs all inputs,
  p n bytes; a value that only moves is read once, however many ranks get it.
- stores: each byte of output is written once, except where it lies in place already.
- copies: a value that moves is both, read here and written there: at least min(loads, stores) bytes are copied.
- folds: each byte of a sum is written by at least one addition of two operands, n bytes.
- crossings, for a sum in private memory: an operand is written once more to get to the process that adds it, from p - 1
  ranks, so (p - 1) n bytes. What only moves crosses with the store that it needs anyway. That may happen in cache.

The min(p, cores) cores share each of these perfectly, and each is done at the best rate measured: for the compulsory
bytes that of a pass over as much memory as a core touches in the call, for crossings that of the fastest cache. A
core's loads, stores and arithmetic overlap, so the bound is the largest of these times, not their sum.

- hops: where every rank needs something of every other (all but the rooted collectives), no rank returns before all
  have called: between the starts of successive calls lies one hop of a cache line. In a rooted collective the root, or
  those that send to it, may run ahead of the others, so back to back the calls may overlap, and no hop is counted.
"""

import functools
from dataclasses import dataclass

from hocket.runtime.tuning.machine_costs import MachineCosts
from hocket.schedule import find_collective, in_place_offset

MESSAGE = "sendrecv"
"""A message from the first to the second of each pair of ranks, all pairs at once, answered by one as long."""


@dataclass(frozen=True)
class Traffic:
    """What has to happen at least, over all ranks: bytes, and hops one after the other."""

    loads: float
    stores: float
    copies: float
    folds: float = 0.0
    crossings: float = 0.0
    hops: int = 0


def lower_bound(
    collective: str, num_ranks: int, num_bytes: int, costs: MachineCosts, *, registered: bool, in_place: bool
) -> float:
    """Seconds that one of many calls back to back takes at least; of `MESSAGE`, one way.

    num_bytes: of the largest input or output of a rank. registered: whether all arrays are in registered memory.
    ScheduleError for an unknown collective.
    """
    traffic = traffic_of(collective, num_ranks, num_bytes, in_place=in_place)
    cores = min(num_ranks, costs.num_cores)
    touched = max(traffic.loads, traffic.stores) if in_place else traffic.loads + traffic.stores
    compulsory = {
        "load": traffic.loads,
        "store": traffic.stores,
        "copy": traffic.copies,
        "add": traffic.folds,
    }
    seconds = [num / costs.rate(kind, touched / cores, cores) for kind, num in compulsory.items()]
    if not registered:
        crossed = {kind: compulsory[kind] + traffic.crossings for kind in ("load", "store")}
        crossed["copy"] = traffic.crossings
        seconds += [num / costs.rate(kind, 0, cores) for kind, num in crossed.items()]
    return max(*seconds, traffic.hops * costs.hop_seconds)


def traffic_of(collective: str, num_ranks: int, num_bytes: int, *, in_place: bool) -> Traffic:
    """The counts of the module's description. Uneven blocks count as equally long ones."""
    if collective == MESSAGE:
        sent = num_ranks // 2 * num_bytes
        return Traffic(sent, sent, 0 if in_place else sent, hops=1)
    kind = find_collective(collective)
    hops = int(num_ranks > 1 and not kind.rooted)
    if not kind.exactly_once:  # nothing but a token
        return Traffic(0, 0, 0, hops=hops)
    inputs, outputs, moved, written = _blocks(collective, num_ranks, in_place)
    block = num_bytes / max(1, *(_most_blocks(collective, num_ranks)))
    if kind.reduces and num_ranks > 1:
        folds = kind.num_blocks(num_ranks) * block
        return Traffic(inputs * block, outputs * block, 0, folds, (num_ranks - 1) * folds, hops)
    # Where blocks change places within one memory, a core may read both before it writes both.
    copies = 0 if in_place and kind.blocks == "pair" else min(moved, written)
    return Traffic(moved * block, written * block, copies * block, hops=hops)


def _most_blocks(collective: str, num_ranks: int) -> tuple[int, int]:
    kind = find_collective(collective)
    return int(kind.num_input_blocks(num_ranks).max()), int(kind.num_output_blocks(num_ranks).max())


@functools.lru_cache(256)
def _blocks(collective: str, num_ranks: int, in_place: bool) -> tuple[int, int, int, int]:
    """Blocks in all inputs and in all outputs; those that have to be read, and written, if nothing is reduced."""
    kind = find_collective(collective)
    num_inputs = num_outputs = written = 0
    moved = set[int]()
    for rank in range(num_ranks):
        inputs, outputs = kind.input_blocks(rank, num_ranks), kind.output_blocks(rank, num_ranks)
        num_inputs += len(inputs)
        num_outputs += len(outputs)
        there = set[int]()
        if in_place and len(inputs) and len(outputs):
            ahead = in_place_offset(inputs, outputs)
            before, after = (ahead, 0) if len(inputs) < len(outputs) else (0, ahead)
            lying = {before + position: block for position, block in enumerate(inputs)}
            there = {block for position, block in enumerate(outputs) if lying.get(after + position) == block}
        written += len(outputs) - len(there)
        moved.update(set(outputs) - there)
    return num_inputs, num_outputs, len(moved), written
