"""GPU tensors and streams: torch.cuda's streams and events behind Hocket's, and copies of tensors in host memory.

The core moves data in host memory. So a GPU tensor is copied to pinned memory on PyTorch's current CUDA stream, the
operation begins when that copy is done, and wait() copies the result back on the stream that is current then. A CUDA
stream cannot wait for a thread of the host. So wait() blocks the host until the result is in pinned memory; the GPU
continues with its earlier work. Ranks may share a GPU.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from hocket.runtime import FOREVER_SECONDS, Stream, raise_failure, stream


class CudaStream(Stream):
    """A hocket.Stream on a CUDA stream (None: a new one): submit() calls the function now, and its kernels queue.

    Its host side is a thread that waits for the GPU.
    """

    __slots__ = ("cuda",)

    def __init__(self, cuda: Any = None, name: str | None = None) -> None:
        super().__init__(name)
        self.cuda = torch.cuda.Stream() if cuda is None else cuda

    def submit(self, function: Callable[..., Any], *args: Any) -> None:
        """Calls function(*args) now, with this stream as PyTorch's current stream."""
        with torch.cuda.stream(self.cuda):
            function(*args)

    def query(self) -> bool:
        """Returns whether all items are done."""
        return bool(self.cuda.query())

    def synchronize(self) -> None:
        """Blocks until all items are done."""
        self.cuda.synchronize()
        super().synchronize()

    def _record(self, timing: bool, event: int = 0) -> Any:
        return CudaMark(self, timing)

    def _await(self, mark: Any, name: str, event: int) -> None:
        if isinstance(mark, CudaMark):
            self.cuda.wait_event(mark.event)
        else:
            mark.wait(FOREVER_SECONDS)
            raise_failure(mark)


class CudaMark:
    """A recorded point of a CUDA stream, with the methods of the core's marks."""

    __slots__ = ("_of", "event")
    _starts: dict[Any, Any] = {}  # noqa: RUF012  # by device: the event at time 0

    def __init__(self, of: CudaStream, timing: bool) -> None:
        self._of = of
        if timing and of.cuda.device not in self._starts:
            start = self._starts[of.cuda.device] = torch.cuda.Event(enable_timing=True)
            start.record(of.cuda)
        self.event = torch.cuda.Event(enable_timing=timing)
        self.event.record(of.cuda)

    def is_passed(self) -> bool:
        """Returns whether the GPU has reached the point."""
        return bool(self.event.query())

    def wait(self, seconds: float) -> bool:
        """Waits until the GPU has reached the point; returns False if `seconds` pass first."""
        return bool(self.on_host().wait(seconds))

    def exception(self) -> None:
        """Returns None: PyTorch raises the errors of kernels."""

    @property
    def seconds(self) -> float:
        """The time in seconds at which the GPU reached the point."""
        return float(self._starts[self._of.cuda.device].elapsed_time(self.event)) / 1e3

    def on_host(self) -> Any:
        """Returns a mark of the core that is passed when this one is."""
        Stream.submit(self._of, self.event.synchronize)
        return Stream._record(self._of, False)


def staged(tensor: Any) -> Any:
    """Returns a copy in pinned memory, made on the current CUDA stream; the operation must wait for this copy."""
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    copy.copy_(tensor.detach(), non_blocking=True)
    return copy


def launching(tensors: Sequence[Any]) -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which launched operations wait for the current CUDA stream if a tensor is on a GPU."""
    devices = [tensor.device for tensor in tensors if tensor.is_cuda]
    if not devices:
        return contextlib.nullcontext()
    return stream(CudaStream(torch.cuda.current_stream(devices[0])))
