"""What a file of MSCCL++'s executor says, field by field, and its JSON.

Source of the fields and limits: https://github.com/microsoft/mscclpp, src/core/executor/execution_plan.cc,
src/core/include/execution_common.hpp, execution_kernel.hpp and python/mscclpp/language. Fields that its parser does not
read are ignored.
"""

from typing import Annotated, Any, Literal, NoReturn, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from hocket.errors import ScheduleError
from hocket.schedule.msccl.text import MAX_BYTES

# Limits of the executor.
MAX_OPS = 64  # of a thread block, those inside a pipeline counted
MAX_CHANNELS = 16  # of a thread block; as many remote buffers
MAX_CHANNELS_OF_OP = 8
MAX_SEMAPHORES_OF_OP = 16
MAX_BARRIERS = 16  # of a GPU
MOST_OFFSET = (1 << 32) - 1  # in bytes, within a buffer; kept in 32 bits

# Limits of this reader. All thread blocks of a GPU have to run at the same time: an A100 has 108 multiprocessors.
MAX_BLOCKS = 108
_MAX_RANKS = 1024
MAX_OPS_IN_ALL = 1 << 16  # what has run before each op is kept as bits

BufferName = Literal["i", "o", "s"]  # input, output, scratch
_Number = Annotated[int, Meta(ge=0, le=1 << 16)]
_Positive = Annotated[int, Meta(ge=1, le=1 << 16)]
_Bytes = Annotated[int, Meta(ge=0)]

SPELLINGS_IN_PLANS = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "reduce_scatter": "reducescatter",
    "broadcast": "broadcast",
    "all_to_all": "alltoall",
}
"""The collectives that the format has, by our name."""


class PlanChunks(msgspec.Struct, omit_defaults=True, kw_only=True, frozen=True):
    """`size` chunks from `index` on: of a local buffer, or of the remote buffer of this number in its thread block."""

    type: BufferName | UnsetType = UNSET
    buffer_id: _Number | UnsetType = UNSET
    switch_channel_id: int | UnsetType = UNSET
    index: _Number
    size: _Positive


class GroupPart(msgspec.Struct, frozen=True):
    """The part of an op that this thread block does: slice `tb_id` of `tbg_size`."""

    tb_id: _Number
    tbg_size: _Positive


class PlanOp(msgspec.Struct, omit_defaults=True, frozen=True):
    """One op of a thread block. `channel_ids` count the channels of this type in its thread block."""

    name: str
    src_buff: tuple[PlanChunks, ...] = ()
    dst_buff: tuple[PlanChunks, ...] = ()
    channel_ids: tuple[_Number, ...] = ()
    channel_type: str = "none"
    reduce_op: str | UnsetType = UNSET
    tbg_info: GroupPart | UnsetType = UNSET
    barrier_id: _Number | UnsetType = UNSET
    num_threadblocks: _Number | UnsetType = UNSET
    semaphore_ids: tuple[_Number, ...] = ()


class BlockChannels(msgspec.Struct):
    """The channels of a thread block, by their number among those of this type of its GPU."""

    channel_type: str
    channel_ids: list[_Number]


class BlockBuffers(msgspec.Struct):
    """The remote buffers that a thread block reaches through channels of a type, by their number in the GPU."""

    access_channel_type: str
    remote_buffer_ids: list[_Number]


class PlanBlock(msgspec.Struct):
    """A thread block: ops that run one after the other."""

    id: _Number
    ops: list[PlanOp]
    channels: list[BlockChannels]
    remote_buffer_refs: list[BlockBuffers] = []


class GpuChannels(msgspec.Struct, omit_defaults=True):
    """Channels of a GPU, one for each entry of `connected_to`. The k-th from a to b is the k-th from b to a."""

    channel_type: str
    connected_to: list[_Number] = []


class RemoteBuffer(msgspec.Struct):
    """A buffer of another GPU that ops can name."""

    rank: _Number
    type: BufferName
    access_channel_types: list[str]


class DeviceSemaphore(msgspec.Struct):
    """A counter by which thread blocks of one GPU wait for each other."""

    init_value: _Number


class PlanGpu(msgspec.Struct):
    """What one rank does."""

    id: _Number
    input_chunks: _Positive
    output_chunks: _Positive
    scratch_chunks: _Number
    threadblocks: list[PlanBlock]
    channels: list[GpuChannels]
    remote_buffers: list[RemoteBuffer]
    semaphores: list[DeviceSemaphore] = []


class ExecutionPlan(msgspec.Struct):
    """A whole file. Sizes are in bytes. Hocket adds `root` to a broadcast; the executor does not read it."""

    name: str
    collective: str
    protocol: str
    inplace: bool
    gpus: list[PlanGpu]
    reuse_resources: bool = False
    num_threads_per_block: _Positive = 1024
    use_double_scratch_buffer: bool = False
    buffer_alignment: _Positive = 16
    min_message_size: _Bytes = 0
    max_message_size: _Bytes = (1 << 64) - 1
    root: _Number | UnsetType = UNSET


_T = TypeVar("_T")


def format_plan(plan: ExecutionPlan) -> str:
    """Its JSON, with a line for each gpu, thread block and op."""
    text = msgspec.json.encode(plan).decode()
    return text[0] + text[1:].replace('{"id":', '\n{"id":').replace('{"name":', '\n{"name":') + "\n"


def parse_plan(text: str, source: str) -> ExecutionPlan:
    """The plan of a file's text; ScheduleError, naming gpu, tb and op, where a field is missing or has no meaning."""
    if len(text) > MAX_BYTES:
        raise ScheduleError(f"{source}: expected at most {MAX_BYTES >> 20} MiB of JSON; found more")
    try:
        content = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ScheduleError(f"{source}: expected JSON; found an error: {error}") from None
    _find_fault(content, source)
    plan = _converted(content, ExecutionPlan, source)
    if not 1 <= len(plan.gpus) <= _MAX_RANKS:
        raise ScheduleError(f"{source}: expected 1 to {_MAX_RANKS} gpus; found {len(plan.gpus)}")
    num_ops = 0
    for number, gpu in enumerate(plan.gpus):
        if gpu.id != number:
            raise ScheduleError(f"{source}: gpu {number}: expected id={number}, as gpus stand in order; found {gpu.id}")
        for tb, block in enumerate(gpu.threadblocks):
            num_ops += len(block.ops)
            if block.id != tb:
                at = f"{source}: gpu {number}, tb {tb}"
                raise ScheduleError(f"{at}: expected id={tb}, as thread blocks stand in order; found {block.id}")
            if len(block.ops) > MAX_OPS:
                at = f"{source}: gpu {number}, tb {tb}"
                raise ScheduleError(f"{at}: expected at most {MAX_OPS} ops; found {len(block.ops)}")
    if num_ops > MAX_OPS_IN_ALL:
        raise ScheduleError(f"{source}: expected at most {MAX_OPS_IN_ALL} ops in all; found {num_ops}")
    return plan


def refuse_op(source: str, at: tuple[int, int, int], op: PlanOp, expected: str, found: str) -> NoReturn:
    """Raise a ScheduleError about the op `at` (gpu, tb, number)."""
    raise ScheduleError(f"{source}: {where_op(at, op)}: expected {expected}; found {found}")


def where_op(at: tuple[int, int, int], op: PlanOp) -> str:
    """Where an op stands, in words; `at` is (gpu, tb, number), with tb -1 for the start and the end of a GPU's call."""
    if at[1] < 0:
        return f"gpu {at[0]}, the {op.name} of its call"
    return f"gpu {at[0]}, tb {at[1]}, op {at[2]} ({op.name})"


def _find_fault(content: Any, source: str) -> None:
    """Convert op by op, because msgspec does not tell which element of a list is at fault."""
    gpus = content.get("gpus") if isinstance(content, dict) else None
    for number, gpu in enumerate(gpus if isinstance(gpus, list) else []):
        if isinstance(gpu, dict) and "inputChunks" in gpu:
            found = "inputChunks, as in plans of older versions of MSCCL++; make the plan again with a newer one"
            raise ScheduleError(f"{source}: gpu {number}: expected input_chunks; found {found}")
        blocks = gpu.get("threadblocks") if isinstance(gpu, dict) else None
        for tb, block in enumerate(blocks if isinstance(blocks, list) else []):
            ops = block.get("ops") if isinstance(block, dict) else None
            for i, op in enumerate(ops if isinstance(ops, list) else []):
                _converted(op, PlanOp, f"{source}: gpu {number}, tb {tb}, op {i}")
            _converted(block, PlanBlock, f"{source}: gpu {number}, tb {tb}")
        _converted(gpu, PlanGpu, f"{source}: gpu {number}")


def _converted(content: Any, kind: type[_T], at: str) -> _T:
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        said = str(error)
        found = f"an error: {said[:1].lower()}{said[1:]}"
        raise ScheduleError(f"{at}: expected the fields of an MSCCL++ plan; found {found}") from None
