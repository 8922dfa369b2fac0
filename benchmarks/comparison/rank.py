"""Runs one rank of one contender: joins, then does its tasks until its parent ends. measuring.py says why.

    python -m comparison.rank LIBRARY ADDRESS RANK SIZE PLACE      (MPI ranks know RANK and SIZE themselves)

The rank sleeps between tasks. It has two connections: the first brings tasks; the second only shows that the parent
ended, even while this rank is in a call that never returns.
"""

import os
import resource
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from itertools import repeat
from multiprocessing.connection import Client, Connection
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any

import numpy as np
import touch  # compiled by building.py

from comparison import values
from comparison.libraries import LIBRARIES, Unsupported, bound

Call = Callable[[], object]


def repeated(num_calls: int, call: Call) -> float:
    began = perf_counter()
    for _ in repeat(None, num_calls):
        call()
    return perf_counter() - began


def touched(num_calls: int, call: Call, touch: Call) -> float:
    began = perf_counter()
    for _ in repeat(None, num_calls):
        touch()
        call()
    return perf_counter() - began


class Rank:
    """One member of the group, its buffers, and its tasks."""

    def __init__(self, library: str, rank: int, size: int, place: str) -> None:
        self.library = LIBRARIES[library](rank, size, place)
        self.rank, self.size = self.library.rank, self.library.size
        self._buffers: dict[tuple[str, int], np.ndarray] = {}

    def _array(self, memory: str, which: int, count: int, dtype: str, most: int) -> np.ndarray:
        """Returns a part of a buffer that all sizes share, so that no cell pays for new pages."""
        kept = self._buffers.get((memory, which))
        num_bytes = count * values.ITEM_BYTES[dtype]  # above `most` if few bytes become an element per rank
        if kept is None or kept.nbytes < max(most, num_bytes):
            # Short arrays alone would get other pages than together with long ones, and than in the floor.
            least = values.LONGEST_BUFFER if memory == "private" else 0
            kept = self.library.memory(max(most, num_bytes, least), memory)
            kept[: max(most, num_bytes)] = 0
            self._buffers[memory, which] = kept
        item = np.float32 if dtype == "float32" else np.uint16
        return kept[:num_bytes].view(item)

    def measure(
        self,
        operation: str,
        num_bytes: int,
        dtype: str,
        memory: str,
        most: int,
        num_calls: int,
        num_batches: int,
        untouched: bool,
    ) -> dict[str, list[float]]:
        """Returns the seconds of each batch of `num_calls`, in both protocols; "touch" is the touching alone.

        memory: the kind of the buffers; most: their minimum bytes, the largest of all cells. Raises RuntimeError for a
        wrong result.
        """
        shape = values.shape(operation, num_bytes, dtype, self.size)
        x = self._array(memory, 0, shape.given, dtype, most)
        y = x if shape.in_place else self._array(memory, 1, shape.got, dtype, most)
        blocks = values.expected(operation, shape, dtype, self.rank, self.size)
        gives = operation != "barrier" and (operation != "broadcast" or self.rank == 0)
        toucher = touch.Touch(x if gives else None, values.table(self.rank, dtype), y if blocks else None)
        call, barrier = self.library.bind(operation, x, y), self.library.barrier
        cell = f"{operation}, {num_bytes} bytes of {dtype}"

        def once() -> None:
            toucher.touch()
            call()
            for block in blocks:
                part = y[block.start : block.start + block.count]
                if touch.differs(part, block.table, block.offset * part.itemsize):
                    raise RuntimeError(f"wrong result: {cell}")

        once()
        toucher.learn()
        seconds: dict[str, list[float]] = {"touched": [], "touch": [], "untouched": []}
        for _ in range(num_batches):
            # A batch may be one call. Its touching must find what a call leaves; the touching alone must not.
            toucher.touch()
            call()
            barrier()
            seconds["touched"].append(touched(num_calls, call, toucher.touch))
            toucher.touch()
            if wrong := toucher.num_wrong():
                raise RuntimeError(f"{wrong} of {num_calls} results are wrong: {cell}")
            barrier()
            seconds["touch"].append(repeated(num_calls, toucher.touch))
            if untouched:
                barrier()
                seconds["untouched"].append(repeated(num_calls, call))
            once()
            toucher.num_wrong()  # resets the count: in place, the last loop overwrote the result
        return seconds

    def empty_calls(self, operation: str, num_calls: int, num_batches: int) -> list[float]:
        """Returns the seconds of a core, by batch, that Python takes in `measure` for all ranks that share the core.

        It calls C functions that do nothing, with the same arguments. If ranks share a core and wait for each other in
        a call, the function yields to the others, so Python returns to caches that they have used. The time of as many
        yields without Python is subtracted.
        """
        ranks_per_core = max(1.0, self.size / (os.cpu_count() or 1))
        takes_turns = ranks_per_core > 1 and operation not in ("broadcast", "reduce")  # in these, ranks may run ahead
        x = np.zeros(2, np.float32)
        call = bound(touch.Nothing(takes_turns), self.rank, operation, x, x)
        nothing = touch.Touch(None, x, None).touch
        seconds = []
        for _ in range(num_batches):
            self.library.barrier()
            began = thread_time()
            touched(num_calls, call, nothing)
            with_python = thread_time()
            repeated(num_calls, nothing)
            alone = thread_time()
            self.library.barrier()
            turns_began = thread_time()
            touch.turns(num_calls if takes_turns else 0)
            without = (alone - with_python) + (thread_time() - turns_began)
            seconds.append(ranks_per_core * (with_python - began - without))
        return seconds

    def late(self, seconds: float) -> dict[str, float]:
        """Returns the CPU seconds that this rank uses in an all_reduce that the last rank enters `seconds` late."""
        x = np.zeros(1, np.float32)
        call = self.library.bind("all_reduce", x, x)
        call()
        self.library.barrier()
        if self.rank == self.size - 1:
            time.sleep(seconds)
        before = resource.getrusage(resource.RUSAGE_SELF)
        began = perf_counter()
        call()
        after = resource.getrusage(resource.RUSAGE_SELF)
        burnt = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return {"burnt": burnt, "waited": perf_counter() - began}

    def staging(self, num_bytes: int) -> int:
        """Returns the bytes of shared memory that this rank of Hocket takes for all collectives with this size."""
        from hocket.runtime import memory

        def taken() -> int:
            return os.fstat(memory.arena().descriptor).st_blocks * 512

        before = taken()
        for operation in values.OPERATIONS:
            shape = values.shape(operation, num_bytes, "float32", self.size)
            x, y = np.zeros(shape.given, np.float32), np.zeros(shape.got, np.float32)
            self.library.bind(operation, x, x if shape.in_place else y)()
        return taken() - before


def segments() -> list[str]:
    """Returns the files of shared memory that this process has mapped; they outlive it if it is killed."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sorted({words[5] for words in map(str.split, lines) if len(words) == 6 and words[5].startswith("/dev/shm/")})


def end_with(parent: socket.socket) -> None:
    parent.recv(1)
    os._exit(1)


def answer(rank: Rank, task: dict[str, Any]) -> dict[str, Any]:
    """Returns the result of the task, or why there is none. The parent ends a rank that failed."""
    arguments = dict(task)
    try:
        return {"value": getattr(rank, arguments.pop("task"))(**arguments)}
    except Unsupported as error:
        return {"unsupported": str(error)}
    except Exception:
        return {"failed": traceback.format_exc()}


def main() -> None:
    library, address, *place = sys.argv[1:]
    watch = socket.socket(socket.AF_UNIX)
    watch.connect(address)
    watch.sendall(b"w")
    threading.Thread(target=end_with, args=(watch,), daemon=True).start()
    LIBRARIES[library].load()
    connection: Connection = Client(address, family="AF_UNIX")
    os.write(connection.fileno(), b"t")
    began = connection.recv()  # all ranks are loaded; all processes share this clock
    rank = Rank(library, int(place[0]), int(place[1]), place[2])
    x = np.zeros(2, np.float32)
    rank.library.bind("all_reduce", x, x)()
    seconds = time.monotonic() - began
    where = {"rank": rank.rank, "host": os.uname().nodename, "process": os.getpid(), "segments": segments()}
    connection.send({**where, "seconds": seconds})
    while (task := connection.recv()) is not None:
        connection.send(answer(rank, task))
    rank.library.close()
    connection.send(None)
    os._exit(0)  # what libraries do at exit is not compared, and some hang there


if __name__ == "__main__":
    main()
