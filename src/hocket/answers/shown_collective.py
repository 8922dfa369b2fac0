"""What a collective does, without an algorithm: what each rank holds before, and what it holds after."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hocket.answers.answer import Answer
from hocket.answers.simulation_case import root_of

if TYPE_CHECKING:
    from hocket.schedule import Collective
    from hocket.view import Terminal

_DEFAULT_RANKS = 4
_MAX_RANKS = 64


@dataclass(frozen=True)
class HeldBlock:
    """A block in a rank's memory, the ranks whose contributions are in it, and its name: x0[1], or sum x[1]."""

    block: int
    ranks: tuple[int, ...]
    label: str


@dataclass(frozen=True, repr=False)
class ShownCollective(Answer):
    """A collective: what each rank holds before and after.

    before, after: for each rank its blocks, in the order of its memory. root: None if the collective has none.
    bus_factor: busbw / algbw; None if no data moves. algorithms: the names of those that do it.
    """

    collective: str
    num_ranks: int
    root: int | None
    before: tuple[tuple[HeldBlock, ...], ...]
    after: tuple[tuple[HeldBlock, ...], ...]
    bus_factor: float | None
    algorithms: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Returns the answer as plain values, as `hocket show --json` does."""
        names = ("collective", "num_ranks", "root", "bus_factor")
        facts: dict[str, Any] = {name: getattr(self, name) for name in names}
        for name, held in (("before", self.before), ("after", self.after)):
            facts[name] = [
                [{"block": one.block, "ranks": list(one.ranks), "label": one.label} for one in blocks]
                for blocks in held
            ]
        return facts | {"algorithms": list(self.algorithms)}

    def _print(self, console: "Terminal") -> None:
        """Prints a line for each rank."""
        from hocket.view import print_collective

        print_collective(console, self.as_json())

    def svg(self) -> str:
        """Returns what the ranks hold before and after as SVG."""
        from hocket.view import draw_collective

        return draw_collective(self.as_json())

    def _repr_html_(self) -> str:
        return self.svg()  # it says all that the text says


def show_collective(name: str, num_ranks: int | None, root: int | None) -> ShownCollective:
    """Returns what a collective does, for 4 ranks unless it says otherwise. Raises ValueError for a bad argument."""
    from hocket.algorithms import ALGORITHMS
    from hocket.schedule import find_collective

    kind = find_collective(name)
    num_ranks = _DEFAULT_RANKS if num_ranks is None else num_ranks
    if not 1 <= num_ranks <= _MAX_RANKS:
        raise ValueError(f"{name}: expected 1 to {_MAX_RANKS} ranks, because more are not readable; found {num_ranks}")
    root = root_of(name, root)
    if not 0 <= root < num_ranks:
        raise ValueError(f"{name}: expected a root from 0 to {num_ranks - 1}, found {root}")
    ranks = range(num_ranks)
    return ShownCollective(
        collective=name,
        num_ranks=num_ranks,
        root=root if kind.rooted else None,
        before=tuple(
            tuple(_given(kind, rank, block, num_ranks, root) for block in kind.input_blocks(rank, num_ranks, root))
            for rank in ranks
        ),
        after=tuple(
            tuple(_received(kind, block, num_ranks, root) for block in kind.output_blocks(rank, num_ranks, root))
            for rank in ranks
        ),
        bus_factor=kind.bus_factor(num_ranks) if kind.exactly_once else None,
        algorithms=tuple(sorted(name for collective, name in ALGORITHMS if collective == kind.name)),
    )


def _given(kind: "Collective", rank: int, block: int, num_ranks: int, root: int) -> HeldBlock:
    """Returns a block of a rank's input; its label says which block of the rank's x it is, if x has several."""
    if not kind.exactly_once:
        return HeldBlock(block, (rank,), f"token {rank}")
    position = int(kind.input_position(rank, block, num_ranks, root))
    part = f"[{position}]" if len(kind.input_blocks(rank, num_ranks, root)) > 1 else ""
    return HeldBlock(block, (rank,), f"x{rank}{part}")


def _received(kind: "Collective", block: int, num_ranks: int, root: int) -> HeldBlock:
    """Returns a block of an output: the sum of all ranks, or what its owner gave."""
    if not kind.reduces:
        return _given(kind, int(kind.owner(block, num_ranks, root)), block, num_ranks, root)
    label = f"sum x[{block}]" if kind.num_blocks(num_ranks) > 1 else "sum x"
    return HeldBlock(block, tuple(range(num_ranks)), label if kind.exactly_once else "all tokens")
