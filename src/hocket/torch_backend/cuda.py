"""Tensors and streams of a GPU: torch.cuda's streams and events behind hocket's, and copies of tensors in host memory.

The core moves what lies in host memory. A tensor of a GPU is copied to pinned memory in the order of PyTorch's current
CUDA stream, the operation begins once that copy is done, and its result is copied back in the order of whichever stream
is current where it is waited for. A CUDA stream cannot wait for a thread of the host: so waiting for an operation
blocks the host until its result is in pinned memory, while the GPU goes on with what it was given before. Ranks need no
GPU of their own.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from hocket.runtime import FOREVER_SECONDS, Stream, raise_failure, stream


class CudaStream(Stream):
    """hocket.Stream on a CUDA stream, a new one if it is None: what is submitted is called now, and its kernels queue.

    Its host side is a thread that waits for what the GPU does.
    """

    __slots__ = ("cuda",)

    def __init__(self, cuda: Any = None, name: str | None = None) -> None:
        super().__init__(name)
        self.cuda = torch.cuda.Stream() if cuda is None else cuda

    def submit(self, function: Callable[..., Any], *args: Any) -> None:
        """Calls function(*args) now, with this as PyTorch's current stream."""
        with torch.cuda.stream(self.cuda):
            function(*args)

    def query(self) -> bool:
        """Whether all that was submitted is done."""
        return bool(self.cuda.query())

    def synchronize(self) -> None:
        """Blocks until all that was submitted is done."""
        self.cuda.synchronize()
        super().synchronize()

    def _record(self, timing: bool) -> Any:
        return CudaMark(self, timing)

    def _await(self, mark: Any) -> None:
        if isinstance(mark, CudaMark):
            self.cuda.wait_event(mark.event)
        else:
            mark.wait(FOREVER_SECONDS)
            raise_failure(mark)


class CudaMark:
    """What an event that was recorded on a CUDA stream stands for, with the methods of the core's marks."""

    __slots__ = ("_of", "event")
    _starts: dict[Any, Any] = {}  # noqa: RUF012  # by device: an event that times count from

    def __init__(self, of: CudaStream, timing: bool) -> None:
        self._of = of
        if timing and of.cuda.device not in self._starts:
            start = self._starts[of.cuda.device] = torch.cuda.Event(enable_timing=True)
            start.record(of.cuda)
        self.event = torch.cuda.Event(enable_timing=timing)
        self.event.record(of.cuda)

    def is_passed(self) -> bool:
        """Whether the GPU has come there."""
        return bool(self.event.query())

    def wait(self, seconds: float) -> bool:
        """False when the time ran out first."""
        return bool(self.on_host().wait(seconds))

    def exception(self) -> None:
        """None: what kernels do wrong is raised by PyTorch."""

    @property
    def seconds(self) -> float:
        """When the GPU came there."""
        return float(self._starts[self._of.cuda.device].elapsed_time(self.event)) / 1e3

    def on_host(self) -> Any:
        """A mark of the core that is passed when this one is."""
        Stream.submit(self._of, self.event.synchronize)
        return Stream._record(self._of, False)


def staged(tensor: Any) -> Any:
    """A copy in pinned memory, made in the order of the current CUDA stream, which the operation has to come after."""
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    copy.copy_(tensor.detach(), non_blocking=True)
    return copy


def launching(tensors: Sequence[Any]) -> contextlib.AbstractContextManager[Any]:
    """While it stands, what is launched comes after the current CUDA stream, where a tensor lies on a GPU."""
    devices = [tensor.device for tensor in tensors if tensor.is_cuda]
    if not devices:
        return contextlib.nullcontext()
    return stream(CudaStream(torch.cuda.current_stream(devices[0])))
