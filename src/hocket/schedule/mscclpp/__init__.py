"""MSCCL++'s execution plans in and out: the JSON in which its executor for GPUs gets an algorithm.

A plan is a program for each thread block of each GPU: puts into memory of others, signals and waits. `write` makes one
of a schedule, by way of MSCCL's thread blocks. `read` finds out which values travel and makes a schedule of them. In
both directions the same values travel between the same ranks, and the labels of the certificate are the same.

`execution_plan` has the fields of the file.
"""

from hocket.schedule.mscclpp.plan_reader import read, read_plan, schedule_of_plan
from hocket.schedule.mscclpp.plan_writer import write

__all__ = ["read", "read_plan", "schedule_of_plan", "write"]
