"""What the schedules promise of time and memory, as formulas of p ranks, m micro-batches and v stages on each rank.

Times are those of `PipelinePromise`: each F, B and W of a stage takes 1, so a rank works 3 m v. For other times some of
the published formulas are wrong by up to 40 %, so `time_table` simulates and uses none of them.
"""

from hocket.training.pipeline.table import PipelinePromise


def nothing(p: int, m: int, v: int) -> PipelinePromise:
    """The promise of a schedule about which nothing is known."""
    return PipelinePromise()


def gpipe(p: int, m: int, v: int) -> PipelinePromise:
    """Idle (p - 1)(F + G); every activation of the batch at once."""
    time = 3 * m + 3 * (p - 1)
    return PipelinePromise(time, time, [m] * p, [m] * p)


def one_forward_one_backward(p: int, m: int, v: int) -> PipelinePromise:
    """Idle as GPipe; min(p - r, m) activations."""
    time, peak = 3 * m + 3 * (p - 1), [min(p - rank, m) for rank in range(p)]
    return PipelinePromise(time, time, peak, peak)


def interleaved(p: int, m: int, v: int) -> PipelinePromise:
    """Idle (p - 1)(F + G) of one of v stages, if p divides m."""
    time = None if m % p else 3 * m * v + 3 * (p - 1)
    peak = [min((v - 1) * p + 2 * (p - 1 - rank) + 1, m * v) for rank in range(p)]
    return PipelinePromise(time, time, peak, peak)


def zero_bubble_1(p: int, m: int, v: int) -> PipelinePromise:
    """Idle (p - 1)(F + B - W), and more for less than p micro-batches; activations of 1F1B, p of them until W."""
    time = 3 * m + p - 1 + max(0, p - m)
    return PipelinePromise(time, time, [min(p - rank, m) for rank in range(p)], [min(p, m)] * p)


def zero_bubble_2(p: int, m: int, v: int) -> PipelinePromise:
    """Idle (p - 1)(F + B - 2 W) in cost, if m >= 2p - 1; 2(p - r) - 1 activations."""
    makespan, cost = 3 * m + p - 1 + max(0, p - 1 - m // 2), 3 * m + max(0, 2 * p - 1 - m)
    peak = [min(2 * (p - rank) - 1, m) for rank in range(p)]
    return PipelinePromise(makespan, cost, peak, [min(2 * p - 1, m)] * p)


def zero_bubble_v(p: int, m: int, v: int) -> PipelinePromise:
    """No idle time in cost, if m >= 2p - 1; the memory of 1F1B on rank 0: 2p stages, each half as long."""
    short = 2 * max(0, 2 * p - 1 - m)
    return PipelinePromise(6 * m + max(p - 1, short), 6 * m + short, [min(2 * p, 2 * m)] * p)


def dualpipe_v(p: int, m: int, v: int) -> PipelinePromise:
    """Idle (p - 1)(FB + F - 2 W), with FB for an overlapped pair; 2p + 1 activations."""
    time = 6 * m + 2 * (p - 1)
    return PipelinePromise(time, time, [2 * p + 1] * p)


def dualpipe(p: int, m: int, v: int) -> PipelinePromise:
    """Idle (p/2 - 1)(FB + F - 2 W); p + 1 activations."""
    time = 3 * m + 2 * (p // 2 - 1)
    return PipelinePromise(time, time, [p + 1] * p)
