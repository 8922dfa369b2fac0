"""The ops of one thread block, with a nop wherever its threads have to wait for each other."""

from collections.abc import Collection, Sequence

from hocket.schedule.msccl.contents import Cell
from hocket.schedule.mscclpp.execution_plan import (
    MAX_CHANNELS_OF_OP,
    MAX_SEMAPHORES_OF_OP,
    PlanChunks,
    PlanOp,
)


class BlockOps:
    """Collects `ops`. A nop comes before an op that needs what other threads of the block have done before it."""

    def __init__(self) -> None:
        self.ops: list[PlanOp] = []
        self._read: set[Cell] = set()  # since the last nop
        self._written: set[Cell] = set()
        self._waited = False
        self._moved = False

    def nop(self) -> None:
        """Let the threads of the block wait for each other."""
        self.ops.append(PlanOp("nop"))
        self._read, self._written = set(), set()
        self._waited = self._moved = False

    def move(
        self,
        name: str,
        sources: Sequence[tuple[PlanChunks, Collection[Cell]]],
        targets: Sequence[tuple[PlanChunks, Collection[Cell]]],
    ) -> None:
        """Add an op that moves data; chunks of other GPUs come with no cells."""
        reads, writes = ({cell for _, cells in side for cell in cells} for side in (sources, targets))
        if self._waited or reads & self._written or writes & (self._read | self._written):
            self.nop()
        remote = any(isinstance(chunks.buffer_id, int) for chunks, _ in targets)
        op = {"src_buff": tuple(one for one, _ in sources), "dst_buff": tuple(one for one, _ in targets)}
        more = {"channel_type": "memory"} if remote else {}
        if name in ("re", "res"):
            more["reduce_op"] = "sum"
        self.ops.append(PlanOp(name, **op, **more))  # type: ignore[arg-type]
        self._read |= reads
        self._written |= writes
        self._moved = True

    def wait(self, channels: Sequence[int]) -> None:
        """Wait for a signal on each of these channels of the block."""
        self._waited |= bool(channels)
        for first in range(0, len(channels), MAX_CHANNELS_OF_OP):
            some = tuple(channels[first : first + MAX_CHANNELS_OF_OP])
            self.ops.append(PlanOp("wait", channel_ids=some, channel_type="memory"))

    def signal(self, channels: Sequence[int]) -> None:
        """Tell the other end of these channels that what stands before this is done."""
        self._settle()
        for first in range(0, len(channels), MAX_CHANNELS_OF_OP):
            some = tuple(channels[first : first + MAX_CHANNELS_OF_OP])
            self.ops.append(PlanOp("signal", channel_ids=some, channel_type="memory"))

    def acquire(self, semaphore: int) -> None:
        """Wait for another thread block of the GPU."""
        self._waited = True
        self.ops.append(PlanOp("sem_acquire", semaphore_ids=(semaphore,)))

    def release(self, semaphores: Sequence[int]) -> None:
        """Tell other thread blocks of the GPU that what stands before this is done."""
        self._settle()
        for first in range(0, len(semaphores), MAX_SEMAPHORES_OF_OP):
            some = tuple(semaphores[first : first + MAX_SEMAPHORES_OF_OP])
            self.ops.append(PlanOp("sem_release", semaphore_ids=some))

    def _settle(self) -> None:
        if self._moved or self._waited:
            self.nop()
