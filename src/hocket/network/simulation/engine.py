"""Event-driven simulation of jobs, by the compiled engine (csrc/simulator) or in Python (plain_engine.py)."""

from collections.abc import Sequence
from dataclasses import dataclass
from errno import ENOMEM

import numpy as np
import numpy.typing as npt

from hocket.errors import ResourceError
from hocket.network import compiled
from hocket.network.simulation.jobs import Job, engine_arrays
from hocket.network.simulation.simulation_options import SimulationOptions

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class MessageTimes:
    """Records of the messages: one entry for each piece of each message, in the order of arrival.

    message: the number of the job's message. step: counted over all repetitions. Times in seconds: started, the first
    byte leaves; sent, the last byte leaves; arrived, the last byte arrives.
    """

    message: Ints
    step: Ints
    piece: Ints
    source: Ints
    target: Ints
    num_bytes: Floats
    started: Floats
    sent: Floats
    arrived: Floats


def run_events(
    jobs: Sequence[Job],
    link_seconds: Floats,
    options: SimulationOptions,
    work_seconds: Sequence[tuple[Floats, ...]],
    *,
    record: bool = False,
) -> tuple[list[Floats], MessageTimes | None]:
    """Returns when each rank of each job finishes, and the messages if record is set.

    work_seconds: for each job, pattern and rank, seconds per byte of a chunk. Raises ValueError for too many pieces,
    ResourceError if memory is too small.
    """
    try:
        return _run(jobs, link_seconds, options, work_seconds, record=record)
    except MemoryError as error:
        ranks = sum(job.traffic.num_ranks for job in jobs)
        raise ResourceError(
            f"not enough memory to simulate {ranks} ranks by events; use fewer bytes or ranks, or the level 'steps'",
            errno=ENOMEM,
            call="simulate",
        ) from error


def _run(
    jobs: Sequence[Job],
    link_seconds: Floats,
    options: SimulationOptions,
    work_seconds: Sequence[tuple[Floats, ...]],
    *,
    record: bool,
) -> tuple[list[Floats], MessageTimes | None]:
    arrays = engine_arrays(jobs, link_seconds, options, work_seconds)
    if compiled.simulator is None:
        from hocket.network.simulation.plain_engine import run
    else:
        run = compiled.simulator.run
    finished, columns = run(arrays, options.store_and_forward_bytes or 0.0, options.tick_seconds, record)
    ends = np.split(finished, np.cumsum([job.traffic.num_ranks for job in jobs])[:-1])
    if not record:
        return ends, None
    message, step, piece, started, sent, arrived = columns
    job = arrays["actor_job"][arrays["source"][message]]
    last = piece + 1 == arrays["job_pieces"][job]
    chunks = np.concatenate([pattern.chunks for job in jobs for pattern in job.traffic.patterns])
    size = np.where(last, arrays["last_piece_bytes"][job], arrays["piece_bytes"][job]) * chunks[message]
    source, target = arrays["source"][message], arrays["target"][message]
    return ends, MessageTimes(message, step, piece, source, target, size, started, sent, arrived)
