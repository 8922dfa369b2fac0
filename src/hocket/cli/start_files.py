"""The files that `hocket new` writes: for each collective a small correct algorithm, and a program that runs it."""

from dataclasses import asdict, dataclass, replace

_FILE = '''\
"""{article} {collective} of my own. After each change, run: {verify}."""

import hocket
import numpy as np


@hocket.algorithm(
    "{collective}",
    chunks="{chunks}",  # number of chunks of the data, for P ranks
    steps="{steps}",
    sent="{sent}",  # by the rank that sends most; 1: {vector}
)
def {name}(schedule):
    """{idea}"""
    p = schedule.num_ranks
    {first}
{steps_of}

if __name__ == "__main__":
    with hocket.init() as comm:
{call}
        print(f"rank {{comm.rank}} of {{comm.size}}: {says}")
'''
_RANK = "rank = schedule.ranks  # numpy.arange(p): one line describes all ranks"
_ROOT = "root = schedule.root"


@dataclass(frozen=True)
class StartFile:
    """What differs between collectives: promises, steps, and a call whose result the program prints."""

    idea: str
    chunks: str
    steps: str
    sent: str
    steps_of: str
    call: str
    says: str = "{y}"
    first: str = _RANK
    vector: str = "the whole vector"

    def text(self, collective: str, name: str, verify: str) -> str:
        """Returns the content of the file; `verify` is the command that proves it."""
        steps_of, call = _indented(self.steps_of, 4), _indented(self.call.replace("NAME", name), 8).rstrip()
        article = "An" if collective.startswith("a") else "A"
        differences = asdict(self) | {"steps_of": steps_of, "call": call}
        return _FILE.format(article=article, collective=collective, name=name, verify=verify, **differences)


def _indented(text: str, depth: int) -> str:
    return "".join(f"{' ' * depth}{line}\n" for line in text.strip().splitlines())


_REDUCE_SCATTER = """
for distance in range(1, p):
    peer = (rank + distance) % p
    with schedule.step():
        schedule.reduce(src=rank, dst=peer, chunk=peer)
"""
_ALL_GATHER = """
for distance in range(1, p):
    with schedule.step():
        schedule.copy(src=rank, dst=(rank + distance) % p, chunk=rank)
"""
_OF_ROOT = """
for distance in range(1, p):
    peer = (root + distance) % p
    with schedule.step():
        schedule.{}
"""
_ALL_TO_ALL = """
for distance in range(p):  # at distance 0, a rank's block for itself
    peer = (rank + distance) % p
    with schedule.step():
        schedule.copy(
            src=rank, dst=peer, src_buffer="input", dst_buffer="output",
            src_chunk=peer, dst_chunk=rank,
        )
"""
_SHARE = "(P - 1) / P"
_COUNTS = "counts = range(1, comm.size + 1)  # rows of each rank\n"
_GIVEN = "x = np.full(comm.rank + 1, comm.rank)\n"

_EVEN: dict[str, StartFile] = {
    "all_reduce": StartFile(
        "Each rank sums one chunk of all ranks and then sends the sum to all others.",
        "P",
        "2 * (P - 1)",
        "2 * (P - 1) / P",
        _REDUCE_SCATTER + _ALL_GATHER.lstrip("\n"),
        'x = np.full(1000, comm.rank + 1.0)\ncomm.all_reduce(x, algorithm="NAME")',
        "the sum is {x[0]}",
    ),
    "all_gather": StartFile(
        "Each rank sends its block to all others, to its next neighbour first.",
        "P",
        "P - 1",
        _SHARE,
        _ALL_GATHER,
        'y = comm.all_gather(np.array([comm.rank]), algorithm="NAME")',
    ),
    "reduce_scatter": StartFile(
        "Each rank sums its own block of all ranks.",
        "P",
        "P - 1",
        _SHARE,
        _REDUCE_SCATTER,
        'y = comm.reduce_scatter(np.arange(comm.size), algorithm="NAME")',
    ),
    "broadcast": StartFile(
        "The root sends everything to one rank after the other.",
        "1",
        "P - 1",
        "P - 1",
        _OF_ROOT.format("copy(src=root, dst=peer, chunk=0)"),
        'y = comm.broadcast(np.array([comm.rank]), root=1 % comm.size, algorithm="NAME")',
        first=_ROOT,
    ),
    "reduce": StartFile(
        "The root adds the vector of one rank after the other.",
        "1",
        "P - 1",
        "min(P - 1, 1)",
        _OF_ROOT.format("reduce(src=peer, dst=root, chunk=0)"),
        'y = comm.reduce(np.array([comm.rank + 1]), root=0, algorithm="NAME")',
        first=_ROOT,
    ),
    "barrier": StartFile(
        "Each rank tells all others that it is here.",
        "1",
        "P - 1",
        "P - 1",
        _ALL_GATHER.replace("copy", "reduce").replace("chunk=rank", "chunk=0"),
        'comm.barrier(algorithm="NAME")',
        "all are here",
    ),
    "gather": StartFile(
        "The root gets the block of one rank after the other.",
        "P",
        "P - 1",
        "min(P - 1, 1) / P",
        _OF_ROOT.format("copy(src=peer, dst=root, chunk=peer)"),
        'y = comm.gather(np.array([comm.rank]), root=0, algorithm="NAME")',
        first=_ROOT,
    ),
    "scatter": StartFile(
        "The root sends one rank after the other its block.",
        "P",
        "P - 1",
        _SHARE,
        _OF_ROOT.format("copy(src=root, dst=peer, chunk=peer)"),
        'x, y = np.arange(comm.size), np.empty(1, int)\ncomm.scatter(x, root=0, out=y, algorithm="NAME")',
        first=_ROOT,
    ),
    "all_to_all": StartFile(
        "Each rank sends each other rank its block, to its next neighbour first.",
        "P * P",
        "P",
        _SHARE,
        _ALL_TO_ALL,
        'y = comm.all_to_all(np.full(comm.size, comm.rank), algorithm="NAME")',
        vector="what one rank gives",
    ),
}
_CALLS_OF_UNEVEN = {
    "all_gather_v": _COUNTS
    + 'x = np.full(comm.rank + 1, comm.rank)\ny = comm.all_gather_v(x, counts, algorithm="NAME")',
    "reduce_scatter_v": _COUNTS + 'y = comm.reduce_scatter_v(np.arange(sum(counts)), counts, algorithm="NAME")',
    "gather_v": _COUNTS
    + 'x = np.full(comm.rank + 1, comm.rank)\ny = comm.gather_v(x, counts, root=0, algorithm="NAME")',
    "scatter_v": _COUNTS
    + "x, y = np.arange(sum(counts)), np.empty(comm.rank + 1, int)\n"
    + 'comm.scatter_v(x, counts, root=0, out=y, algorithm="NAME")',
    "all_to_all_v": "mine = [comm.rank + 1] * comm.size  # rows for each rank\n"
    + "x, others = np.full(sum(mine), comm.rank), range(1, comm.size + 1)\n"
    + 'y = comm.all_to_all_v(x, mine, others, algorithm="NAME")',
}


def start_file(collective: str) -> StartFile:
    """Returns the start for a collective. An uneven one has the steps of the even one, and another call."""
    even = _EVEN[collective.removesuffix("_v")]
    return replace(even, call=_CALLS_OF_UNEVEN[collective]) if collective in _CALLS_OF_UNEVEN else even
