"""MSCCL XML in and out: the format in which msccl-tools, TACCL and others give algorithms to the MSCCL runtimes.

A file is a program for each thread block of each GPU, for one rank count and mostly one alias mode. `read` finds out
which values travel and makes a schedule of them, in the fewest steps that the data allow; so a schedule that staggers
independent transfers comes back with fewer steps. `write` gives a schedule's transfers to thread blocks. In both
directions the same values travel between the same ranks, and the labels of the certificate are the same: a two-operand
reduction folds what is there first and what arrives second.

`program` is the form in between, `text` its XML.
"""

from hocket.schedule.msccl.reader import read, read_program, schedule_of
from hocket.schedule.msccl.writer import write

__all__ = ["read", "read_program", "schedule_of", "write"]
