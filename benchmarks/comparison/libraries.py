"""How each library joins, gets memory, and makes the calls that are compared; nothing else is imported in a rank.

A call is bound to its buffers once and then made without arguments. `x` is what a rank gives, `y` what it gets:
all_reduce, broadcast and reduce (on the root) work in place on x, all others from x into y. bfloat16 stands in NumPy
arrays as uint16. The root is rank 0; messages go between ranks 2k and 2k + 1, there and back.
"""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

Call = Callable[[], object]


class Unsupported(Exception):
    """The library has no such call, type or memory."""


def there_and_back(send: Call, recv: Call, first: bool) -> Call:
    def ping() -> None:
        send()
        recv()

    def pong() -> None:
        recv()
        send()

    return ping if first else pong


def bound(comm: Any, rank: int, operation: str, x: np.ndarray, y: np.ndarray) -> Call:
    """A call of Hocket's, or of touch.Nothing, which has methods of the same names."""
    peer = rank ^ 1
    if operation == "barrier":
        return comm.barrier
    if operation == "send_recv":
        return there_and_back(partial(comm.send, x, peer), partial(comm.recv, y, peer), rank < peer)
    call = getattr(comm, operation)
    if operation in ("all_reduce", "broadcast", "reduce"):
        return partial(call, x)

    def into() -> None:  # a partial with a keyword copies a dictionary each time, which no program does
        call(x, out=y)

    return into


class Hocket:
    """Hocket, on arrays of ordinary ("private") or its own ("registered") memory."""

    @staticmethod
    def load() -> None:
        """Imports what joining needs."""
        import ml_dtypes  # noqa: F401

        import hocket.runtime.communicator  # noqa: F401

    def __init__(self, rank: int, size: int, place: str) -> None:
        import ml_dtypes

        import hocket

        self._bfloat16, self._empty = ml_dtypes.bfloat16, hocket.empty
        self.rank, self.size = rank, size
        self.comm = hocket.init(rank, size, address=place)
        self.barrier: Call = self.comm.barrier
        self.close: Call = self.comm.close

    def memory(self, num_bytes: int, kind: str) -> np.ndarray:
        """Uninitialised memory of a kind; raises Unsupported."""
        return self._empty(num_bytes, "uint8") if kind == "registered" else np.empty(num_bytes, np.uint8)

    def bind(self, operation: str, x: np.ndarray, y: np.ndarray) -> Call:
        """The call on these buffers; raises Unsupported."""
        if x.dtype == np.uint16:
            x, y = x.view(self._bfloat16), y.view(self._bfloat16)
        return bound(self.comm, self.rank, operation, x, y)


class Mpi:
    """Any MPI through mpi4py, whose buffers are described to the last detail, which is the fastest way."""

    @staticmethod
    def load() -> None:
        """Not before the ranks are started together: importing it joins."""

    def __init__(self, *_: object) -> None:
        from mpi4py import MPI

        self._mpi, self.comm = MPI, MPI.COMM_WORLD
        self.rank, self.size = self.comm.Get_rank(), self.comm.Get_size()
        self.barrier: Call = self.comm.Barrier
        self.close: Call = MPI.Finalize

    def memory(self, num_bytes: int, kind: str) -> np.ndarray:
        """Uninitialised memory of a kind; raises Unsupported."""
        if kind != "private":
            raise Unsupported(f"{kind} memory")
        return np.empty(num_bytes, np.uint8)

    def bind(self, operation: str, x: np.ndarray, y: np.ndarray) -> Call:
        """The call on these buffers; raises Unsupported."""
        mpi, comm, peer = self._mpi, self.comm, self.rank ^ 1
        dtype = mpi.FLOAT if x.dtype == np.float32 else mpi.BFLOAT16_T
        if dtype == mpi.DATATYPE_NULL:
            raise Unsupported("bfloat16")
        give, take = [x, x.size, dtype], [y, y.size, dtype]
        per_rank = [y, y.size // self.size, dtype]
        match operation:
            case "barrier":
                return comm.Barrier
            case "all_reduce":
                return partial(comm.Allreduce, mpi.IN_PLACE, give)
            case "all_gather":
                return partial(comm.Allgather, give, per_rank)
            case "reduce_scatter":
                return partial(comm.Reduce_scatter_block, [x, y.size, dtype], take)
            case "all_to_all":
                return partial(comm.Alltoall, [x, x.size // self.size, dtype], per_rank)
            case "broadcast":
                return partial(comm.Bcast, give)
            case "reduce":
                return partial(comm.Reduce, give if self.rank else mpi.IN_PLACE, give)
            case "send_recv":
                send = partial(comm.Send, give, peer)
                return there_and_back(send, partial(comm.Recv, take, peer), self.rank < peer)
        raise Unsupported(operation)


class Gloo:
    """Gloo inside torch.distributed; tensors lie in NumPy's memory."""

    @staticmethod
    def load() -> None:
        """Imports what joining needs."""
        import torch.distributed  # noqa: F401

    def __init__(self, rank: int, size: int, place: str) -> None:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        self._torch, self._dist = torch, dist
        self.rank, self.size = rank, size
        dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=size)
        self.barrier: Call = dist.barrier
        self.close: Call = dist.destroy_process_group

    memory = Mpi.memory

    def bind(self, operation: str, x: np.ndarray, y: np.ndarray) -> Call:
        """The call on these buffers; raises Unsupported."""
        torch, dist, peer = self._torch, self._dist, self.rank ^ 1
        if x.dtype == np.uint16:
            give, take = (torch.from_numpy(each.view(np.int16)).view(torch.bfloat16) for each in (x, y))
        else:
            give, take = torch.from_numpy(x), torch.from_numpy(y)
        match operation:
            case "barrier":
                return partial(dist.barrier)
            case "all_reduce":
                return partial(dist.all_reduce, give)
            case "all_gather":
                return partial(dist.all_gather_into_tensor, take, give)
            case "reduce_scatter":
                return partial(dist.reduce_scatter_tensor, take, give)
            case "all_to_all":
                return partial(dist.all_to_all_single, take, give)
            case "broadcast":
                return partial(dist.broadcast, give, 0)
            case "reduce":
                return partial(dist.reduce, give, 0)
            case "send_recv":
                return there_and_back(partial(dist.send, give, peer), partial(dist.recv, take, peer), self.rank < peer)
        raise Unsupported(operation)


LIBRARIES = {"hocket": Hocket, "mpi": Mpi, "gloo": Gloo}
