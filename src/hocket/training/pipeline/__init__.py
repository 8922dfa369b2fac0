"""Pipelines as tables: which rank runs which operation, of which stage and micro-batch, in which order.

    table.py                what a table is
    pipeline_schedules.py   the schedules of the field, and those of users; operations.py: what they are written with
    pipeline_promises.py    what the schedules promise of time and memory
    pipeline_law.py         the five laws; pipeline_order.py, pipeline_channels.py, deadlock.py: what they need
    pipeline_timing.py      how long a table takes
    torch_csv.py            the files of torch.distributed.pipelining
    pipeline_runner.py      runs a table with PyTorch; table_run.py, pipeline_messages.py, split_backward.py,
                            shared_weights.py: its parts

    table = build_table("zb-h1", ranks=4, microbatches=8)
    verify_table(table).fewest_messages.tagged
    time_table(table, F=1.0, B=1.0, W=1.0, message=0.1).bubble_rate
    Runner(table, {comm.rank: stage}, comm, loss=loss).step(batch, targets)

Only `Runner` imports PyTorch. Left out: schedules that are found by a search, such as V-Half and V-Min.
"""

from typing import TYPE_CHECKING

from hocket.lazy import lazy_names

if TYPE_CHECKING:
    from hocket.training.pipeline.operations import alternate as alternate
    from hocket.training.pipeline.operations import backward as backward
    from hocket.training.pipeline.operations import forward as forward
    from hocket.training.pipeline.operations import full as full
    from hocket.training.pipeline.operations import overlapped as overlapped
    from hocket.training.pipeline.operations import weight as weight
    from hocket.training.pipeline.pipeline_channels import FewestMessages as FewestMessages
    from hocket.training.pipeline.pipeline_channels import rendezvous_order as rendezvous_order
    from hocket.training.pipeline.pipeline_law import PipelineProof as PipelineProof
    from hocket.training.pipeline.pipeline_law import verify_table as verify_table
    from hocket.training.pipeline.pipeline_runner import Runner as Runner
    from hocket.training.pipeline.pipeline_schedules import SCHEDULES as SCHEDULES
    from hocket.training.pipeline.pipeline_schedules import PipelineSchedule as PipelineSchedule
    from hocket.training.pipeline.pipeline_schedules import build_table as build_table
    from hocket.training.pipeline.pipeline_timing import PipelineTiming as PipelineTiming
    from hocket.training.pipeline.pipeline_timing import time_table as time_table
    from hocket.training.pipeline.table import KINDS as KINDS
    from hocket.training.pipeline.table import MessageOrder as MessageOrder
    from hocket.training.pipeline.table import PipelinePromise as PipelinePromise
    from hocket.training.pipeline.table import PipelineTable as PipelineTable
    from hocket.training.pipeline.table import table_of as table_of
    from hocket.training.pipeline.torch_csv import read_torch_csv as read_torch_csv
    from hocket.training.pipeline.torch_csv import write_torch_csv as write_torch_csv
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "operations": ["alternate", "backward", "forward", "full", "overlapped", "weight"],
            "pipeline_channels": ["FewestMessages", "rendezvous_order"],
            "pipeline_law": ["PipelineProof", "verify_table"],
            "pipeline_runner": ["Runner"],
            "pipeline_schedules": [
                "SCHEDULES",
                "PipelineSchedule",
                "build_table",
            ],
            "pipeline_timing": ["PipelineTiming", "time_table"],
            "table": ["KINDS", "MessageOrder", "PipelinePromise", "PipelineTable", "table_of"],
            "torch_csv": ["read_torch_csv", "write_torch_csv"],
        },
    )
