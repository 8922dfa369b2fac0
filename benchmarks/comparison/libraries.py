"""How each library starts a rank, allocates memory, and makes the compared calls. A rank imports only its library.

A call is bound to its buffers once, then made without arguments. `x` is the input of a rank, `y` its output:
all_reduce, broadcast and reduce (on the root) work in place on x, all others from x into y. NumPy arrays hold bfloat16
as uint16. The root is rank 0. Messages go from rank 2k to rank 2k + 1 and back.
"""

import ctypes
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

Call = Callable[[], object]

MEETING_SECONDS = 20.0  # of Hocket's ranks on several hosts; less than groups.START_SECONDS, so that its error is shown


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
    """Returns a call of Hocket, or of touch.Nothing, which has methods of the same names."""
    peer = rank ^ 1
    if operation == "barrier":
        return comm.barrier
    if operation == "send_recv":
        return there_and_back(partial(comm.send, x, peer), partial(comm.recv, y, peer), rank < peer)
    call = getattr(comm, operation)
    if operation in ("all_reduce", "broadcast", "reduce"):
        return partial(call, x)

    def into() -> None:  # not a partial: with a keyword, each call would copy a dictionary, as no program does
        call(x, out=y)

    return into


class Hocket:
    """Hocket, on arrays of ordinary ("private") or its own ("registered") memory."""

    @staticmethod
    def load() -> None:
        """Imports what `__init__` needs."""
        import ml_dtypes  # noqa: F401

        import hocket.runtime.communicator.communicator  # noqa: F401

    def __init__(self, rank: int, size: int, place: str) -> None:
        import ml_dtypes

        import hocket

        self._bfloat16, self._empty = ml_dtypes.bfloat16, hocket.empty
        self.rank, self.size = rank, size
        on_hosts = "HOCKET_KEY" in os.environ
        self.comm = hocket.init(timeout=MEETING_SECONDS) if on_hosts else hocket.init(rank, size, address=place)
        self.barrier: Call = self.comm.barrier
        self.close: Call = self.comm.close

    def memory(self, num_bytes: int, kind: str) -> np.ndarray:
        """Returns uninitialised memory of a kind; raises Unsupported."""
        return self._empty(num_bytes, "uint8") if kind == "registered" else np.empty(num_bytes, np.uint8)

    def bind(self, operation: str, x: np.ndarray, y: np.ndarray) -> Call:
        """Returns the call on these buffers; raises Unsupported."""
        if x.dtype == np.uint16:
            x, y = x.view(self._bfloat16), y.view(self._bfloat16)
        return bound(self.comm, self.rank, operation, x, y)


class Mpi:
    """Any MPI through mpi4py, with complete descriptions of the buffers, which is fastest."""

    @staticmethod
    def load() -> None:
        """Imports nothing: importing MPI waits for the other ranks."""

    def __init__(self, *_: object) -> None:
        from mpi4py import MPI

        self._mpi, self.comm = MPI, MPI.COMM_WORLD
        self.rank, self.size = self.comm.Get_rank(), self.comm.Get_size()
        self.barrier: Call = self.comm.Barrier
        self.close: Call = MPI.Finalize

    def memory(self, num_bytes: int, kind: str) -> np.ndarray:
        """Returns uninitialised memory of a kind; raises Unsupported."""
        if kind != "private":
            raise Unsupported(f"{kind} memory")
        return np.empty(num_bytes, np.uint8)

    def bind(self, operation: str, x: np.ndarray, y: np.ndarray) -> Call:
        """Returns the call on these buffers; raises Unsupported."""
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
    """Gloo inside torch.distributed; its tensors use the memory of NumPy arrays."""

    @staticmethod
    def load() -> None:
        """Imports what `__init__` needs."""
        import torch.distributed  # noqa: F401

    def __init__(self, rank: int, size: int, place: str) -> None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
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
        """Returns the call on these buffers; raises Unsupported."""
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


class DeepSpeed:
    """DeepSpeed's kernel for tensors in shared memory, which it compiles on the first start; it has only all_reduce."""

    @staticmethod
    def load() -> None:
        """Imports what `__init__` needs."""
        from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder

        DeepSpeed.kernel = ShareMemCommBuilder().load(verbose=False)

    kernel: Any

    def __init__(self, rank: int, size: int, place: str) -> None:
        import torch

        torch.set_num_threads(1)
        self._torch, self.rank, self.size = torch, rank, size
        # DeepSpeed only makes the names of its shared memory from these; it connects to no address.
        name = Path(place).parent.name
        os.environ |= {"LOCAL_SIZE": str(size), "MASTER_ADDR": name, "MASTER_PORT": "0"}
        self.kernel.initialize(size, rank)
        self.barrier: Call = partial(torch.ops.deepspeed.inference_all_reduce_, torch.zeros(1))
        self.barrier()  # now all ranks have mapped all segments, which DeepSpeed never removes
        for file in Path("/dev/shm").glob(f"*_{name}_0_{rank}"):
            file.unlink()

    memory = Mpi.memory

    def close(self) -> None:
        """Does nothing: the kernel has no call for it."""

    def bind(self, operation: str, x: np.ndarray, y: np.ndarray) -> Call:
        """Returns the call on these buffers; raises Unsupported."""
        if operation != "all_reduce":
            raise Unsupported(operation)
        tensor = self._torch.from_numpy(x.view(np.int16) if x.dtype == np.uint16 else x)
        given = tensor.view(self._torch.bfloat16) if x.dtype == np.uint16 else tensor
        return partial(self._torch.ops.deepspeed.inference_all_reduce_, given)


class OneCcl:
    """oneCCL through its C interface with ctypes, which adds about a microsecond to a call."""

    class Id(ctypes.Structure):
        """The address of the group: rank 0 writes it to a file, and the others read it."""

        _fields_ = (("data", ctypes.c_char * 4096),)

    FLOAT32, BFLOAT16, SUM = 7, 9, 0
    library: Any

    @staticmethod
    def load() -> None:
        """Loads the library of this environment."""
        OneCcl.library = ctypes.CDLL(os.fspath(Path(sys.prefix, "lib", "libccl.so.2")))

    def __init__(self, rank: int, size: int, place: str) -> None:
        self.rank, self.size, self._comm, found = rank, size, ctypes.c_void_p(), self.Id()
        file = Path(place)
        if rank == 0:
            self._checked("GetUniqueId", ctypes.byref(found))
            file.with_suffix(".new").write_bytes(bytes(found))
            file.with_suffix(".new").rename(file)
        while not file.exists():  # the parent ends this rank if the file never comes
            time.sleep(0.001)
        found = self.Id.from_buffer_copy(file.read_bytes())
        self._checked("CommInitRank", ctypes.byref(self._comm), ctypes.c_size_t(size), found, rank)
        token = np.zeros(1, np.float32)
        self.barrier: Call = self.bind("all_reduce", token, token)

    memory = Mpi.memory

    def _checked(self, name: str, *given: Any) -> None:
        if result := getattr(self.library, f"oneccl{name}")(*given):
            raise RuntimeError(f"oneccl{name}: result {result}")

    def close(self) -> None:
        """Leaves the group."""
        self._checked("CommDestroy", self._comm)

    def bind(self, operation: str, x: np.ndarray, y: np.ndarray) -> Call:
        """Returns the call on these buffers; raises Unsupported."""
        kind = self.FLOAT32 if x.dtype == np.float32 else self.BFLOAT16
        give, take = ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data)
        count, part = ctypes.c_size_t(x.size), ctypes.c_size_t(y.size)
        block = ctypes.c_size_t(x.size // self.size)
        match operation:
            case "all_reduce":
                name, given = "AllReduce", (give, give, count, kind, self.SUM)
            case "reduce":
                name, given = "Reduce", (give, give, count, kind, self.SUM, 0)
            case "broadcast":
                name, given = "Broadcast", (give, give, count, kind, 0)
            case "all_gather":
                name, given = "AllGather", (give, take, count, kind)
            case "reduce_scatter":
                name, given = "ReduceScatter", (give, take, part, kind, self.SUM)
            case "all_to_all":
                name, given = "AllToAll", (give, take, block, kind)
            case "send_recv":
                peer = self.rank ^ 1
                send = self._bound("Send", x, give, count, kind, peer)
                return there_and_back(send, self._bound("Recv", y, take, part, kind, peer), self.rank < peer)
            case _:
                raise Unsupported(operation)
        return self._bound(name, (x, y), *given)

    def _bound(self, name: str, held: object, *given: Any) -> Call:
        """Returns the call. held: keeps the memory alive whose addresses are passed."""
        call, arguments = getattr(self.library, f"oneccl{name}"), (*given, self._comm, None)

        def checked() -> object:
            if result := call(*arguments):
                raise RuntimeError(f"oneccl{name}: result {result}")
            return held

        return checked


LIBRARIES = {"hocket": Hocket, "mpi": Mpi, "gloo": Gloo, "oneccl": OneCcl, "deepspeed": DeepSpeed}
