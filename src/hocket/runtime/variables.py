"""The environment variables of Hocket: one table, which `hocket doctor` and docs/reports/variables.md print."""

from typing import Literal, NamedTuple

RANK = "HOCKET_RANK"
SIZE = "HOCKET_SIZE"
ADDRESS = "HOCKET_ADDRESS"
LOCAL_RANK = "HOCKET_LOCAL_RANK"
LOCAL_SIZE = "HOCKET_LOCAL_SIZE"
KEY_FD = "HOCKET_KEY_FD"
KEY_FILE = "HOCKET_KEY_FILE"
KEY = "HOCKET_KEY"
ALGO = "HOCKET_ALGO"
TUNER_CONFIG_FILE = "HOCKET_TUNER_CONFIG_FILE"
CACHE = "HOCKET_CACHE"
CMA = "HOCKET_CMA"
TRACE = "HOCKET_TRACE"
DEBUG = "HOCKET_DEBUG"
PACED_LINK = "HOCKET_PACED_LINK"
PROFILE = "HOCKET_PROFILE"
TRANSPORT = "HOCKET_TRANSPORT"
SOCKET_IFNAME = "HOCKET_SOCKET_IFNAME"

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
        "hocket.runtime.ranks.starters",
        "launcher",
        "what torchrun, MPI or Slurm says; else 0",
        "The number of this rank, from 0 to the number of ranks - 1.",
    ),
    Variable(
        SIZE,
        "hocket.runtime.ranks.starters",
        "launcher",
        "what torchrun, MPI or Slurm says; else 1",
        "The number of ranks of the job.",
    ),
    Variable(
        ADDRESS,
        "hocket.runtime.ranks.environment",
        "launcher",
        "derived from the job of torchrun, MPI or Slurm",
        "Where the ranks meet, the same text on all: HOST:PORT, where rank 0 listens; or any other name, on one host.",
    ),
    Variable(
        LOCAL_RANK,
        "hocket.runtime.ranks.starters",
        "launcher",
        "that of torchrun, MPI or Slurm; else the rank",
        "The number of this rank among those of its host, from 0.",
    ),
    Variable(
        LOCAL_SIZE,
        "hocket.runtime.ranks.starters",
        "launcher",
        "that of torchrun, MPI or Slurm; else the size",
        "The number of ranks on this host.",
    ),
    Variable(
        KEY_FD,
        "hocket.runtime.network.job_key",
        "launcher",
        "see HOCKET_KEY_FILE",
        "An inherited descriptor with the key of a job on several hosts, 32 bytes. `hocket run` sets it.",
    ),
    Variable(
        KEY_FILE,
        "hocket.runtime.network.job_key",
        "launcher",
        "see HOCKET_KEY",
        "A file with the key, 32 bytes or 64 hex digits, that only its owner can read.",
    ),
    Variable(
        KEY,
        "hocket.runtime.network.job_key",
        "launcher",
        "MPICH and Intel MPI carry a key of rank 0; others need one",
        "The key as 64 hex digits, if it can be given in no other way: all child processes inherit it.",
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
        "What carries data inside hosts: shared memory (shm), or TCP (tcp), as between hosts. All ranks need the same.",
    ),
    Variable(
        SOCKET_IFNAME,
        "hocket.runtime.network.interfaces",
        "rank",
        "the interface that routes towards rank 0",
        "The interfaces by which ranks reach other hosts, in the grammar of NCCL_SOCKET_IFNAME, or networks.",
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
        "Words, with commas: 1, tracebacks show frames inside Hocket; INIT, each rank tells what it was started with.",
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
