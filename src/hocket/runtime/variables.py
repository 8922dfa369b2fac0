"""The environment variables of Hocket: one table, which `hocket doctor` and docs/reports/variables.md print."""

from typing import Literal, NamedTuple

RANK = "HOCKET_RANK"
SIZE = "HOCKET_SIZE"
ADDRESS = "HOCKET_ADDRESS"
LOCAL_RANK = "HOCKET_LOCAL_RANK"
LOCAL_SIZE = "HOCKET_LOCAL_SIZE"
KEY_FD = "HOCKET_KEY_FD"
ALGO = "HOCKET_ALGO"
TUNER_CONFIG_FILE = "HOCKET_TUNER_CONFIG_FILE"
CACHE = "HOCKET_CACHE"
CMA = "HOCKET_CMA"
TRACE = "HOCKET_TRACE"
DEBUG = "HOCKET_DEBUG"
PACED_LINK = "HOCKET_PACED_LINK"
PROFILE = "HOCKET_PROFILE"
TRANSPORT = "HOCKET_TRANSPORT"

Scope = Literal["rank", "rank 0 for all", "launcher"]


class Variable(NamedTuple):
    """One environment variable.

    reader: the module that reads it. scope: "rank", each rank heeds its own; "rank 0 for all", rank 0 reads it and
    tells the others; "launcher", what starts the ranks sets it for each of them. default: what holds without it.
    """

    name: str
    reader: str
    scope: Scope
    default: str
    sentence: str


VARIABLES = (
    Variable(
        RANK,
        "hocket.runtime.ranks.environment",
        "launcher",
        "what torchrun, MPI or Slurm says; else 0",
        "The number of this rank, from 0 to the number of ranks - 1.",
    ),
    Variable(
        SIZE,
        "hocket.runtime.ranks.environment",
        "launcher",
        "what torchrun, MPI or Slurm says; else 1",
        "The number of ranks of the job.",
    ),
    Variable(
        ADDRESS,
        "hocket.runtime.ranks.environment",
        "launcher",
        "derived from the job of torchrun, MPI or Slurm",
        "The name at which the ranks of the job meet, the same text on all ranks; over several hosts HOST:PORT.",
    ),
    Variable(
        LOCAL_RANK,
        "hocket.runtime.ranks.environment",
        "launcher",
        "that of torchrun, MPI or Slurm; else the rank",
        "The number of this rank among those of its host.",
    ),
    Variable(
        LOCAL_SIZE,
        "hocket.runtime.ranks.environment",
        "launcher",
        "that of torchrun, MPI or Slurm; else the number of ranks",
        "The number of ranks on the host of this rank.",
    ),
    Variable(
        KEY_FD,
        "hocket.runtime.launch.host_ranks",
        "launcher",
        "no descriptor",
        "The descriptor from which a rank reads the 32 bytes of the key of a job over several hosts.",
    ),
    Variable(
        ALGO,
        "hocket.runtime.choice.select",
        "rank 0 for all",
        "every algorithm may run",
        "The algorithms that may run, for one collective or for all, in the grammar of NCCL_ALGO.",
    ),
    Variable(
        TUNER_CONFIG_FILE,
        "hocket.runtime.choice.tuner_file",
        "rank 0 for all",
        "hocket_tuner.conf in the working directory, if there is one",
        "The tuner file, which says what algorithm runs at what size; an empty value means no file.",
    ),
    Variable(
        PROFILE,
        "hocket.runtime.choice.profile",
        "rank 0 for all",
        "that of the processor",
        "The processor, or a TOML file of lengths, by which data finds its way between ranks (docs/reports/routes.md).",
    ),
    Variable(
        CACHE,
        "hocket.runtime.cache",
        "rank",
        "hocket in $XDG_CACHE_HOME, or else in ~/.cache",
        "The folder that keeps verdicts of proofs and measured costs.",
    ),
    Variable(
        CMA,
        "hocket.runtime.ranks.environment",
        "rank",
        "1",
        "Whether other ranks may read this rank's private memory (1), or data is staged instead (0).",
    ),
    Variable(
        TRANSPORT,
        "hocket.runtime.ranks.environment",
        "rank",
        "shm",
        "What carries data between ranks: shared memory (shm), or TCP connections (tcp). All ranks need the same.",
    ),
    Variable(
        TRACE,
        "hocket.runtime.traces.trace",
        "rank",
        "no trace",
        "The file into which the program is traced from hocket.init() on.",
    ),
    Variable(
        DEBUG,
        "hocket.runtime.ranks.program_frames",
        "rank",
        "0",
        "Whether tracebacks of `hocket run`, run_ranks and the PyTorch backend show the frames inside Hocket (1).",
    ),
    Variable(
        PACED_LINK,
        "hocket.runtime.ranks.environment",
        "rank",
        "no pacing",
        "Bytes per second and seconds of a simulated link between ranks, set by `hocket.testing.paced_link`.",
    ),
)
"""All of them, in the order in which they are printed."""
