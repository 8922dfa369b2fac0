"""The ranks in words, as all messages name them."""

from collections.abc import Iterable

_MAX_RUNS = 8


def name_ranks(ranks: Iterable[int]) -> str:
    """Returns the ranks in words, those that follow each other as a range: "rank 2", "ranks 0, 1", "ranks 0, 3-7".

    After some ranges it counts the rest: "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 20 more".
    """
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    shown = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs[:_MAX_RUNS]]
    said = ", ".join(shown)
    num_left = sum(map(len, runs[_MAX_RUNS:]))
    return f"{'rank' if said.isdecimal() else 'ranks'} {said}" + (f" and {num_left} more" if num_left else "")
