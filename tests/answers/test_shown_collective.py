"""hocket.show of a collective: what each rank holds before and after, as a communicator does it."""

from typing import Any

import numpy as np
import pytest

import hocket
from hocket.answers import ShownCollective
from hocket.cli import main
from hocket.schedule import COLLECTIVES

PRIMITIVES = [name for name, kind in COLLECTIVES.items() if not kind.uneven]
NUM_RANKS, ROOT = 3, 1


def labels(held: tuple[Any, ...]) -> list[list[str]]:
    return [[one.label for one in blocks] for blocks in held]


def test_no_algorithm_has_the_name_of_a_collective() -> None:
    assert not {name for _, name in hocket.algorithms.ALGORITHMS} & set(COLLECTIVES)


@pytest.mark.parametrize("name", COLLECTIVES)
def test_every_collective_can_be_shown(name: str) -> None:
    shown = hocket.show(name)
    assert isinstance(shown, ShownCollective)
    assert shown.num_ranks == len(shown.before) == len(shown.after) == 4
    assert (shown.root == 0) == COLLECTIVES[name].rooted
    assert shown.algorithms and set(shown.algorithms) == set(hocket.algorithms(name))


def test_a_root_has_what_the_others_do_not() -> None:
    shown = hocket.show("scatter", ranks=3, root=1)
    assert labels(shown.before) == [[], ["x1[0]", "x1[1]", "x1[2]"], []]
    assert labels(shown.after) == [["x1[0]"], ["x1[1]"], ["x1[2]"]]
    assert labels(hocket.show("reduce", ranks=2, root=1).after) == [[], ["sum x"]]
    assert "0      -                     x1[0]" in str(shown)


def test_a_reduction_holds_what_every_rank_gives() -> None:
    shown = hocket.show("reduce_scatter", ranks=3)
    assert labels(shown.before)[2] == ["x2[0]", "x2[1]", "x2[2]"]
    assert [(one.label, one.ranks) for one in shown.after[2]] == [("sum x[2]", (0, 1, 2))]
    assert labels(hocket.show("barrier", ranks=2).before) == [["token 0"], ["token 1"]]
    assert "busbw = 0.6667 * algbw" in str(shown) and "busbw" not in str(hocket.show("barrier"))


@pytest.mark.parametrize("name", [name for name in PRIMITIVES if name != "barrier"])
def test_ranks_hold_after_a_call_what_is_shown(name: str) -> None:
    """A block of rank r holds 10**r; the sum of a block of the result is that of the ranks that are shown in it."""
    kind = COLLECTIVES[name]
    root = {"root": ROOT} if kind.rooted else {}
    shown = hocket.show(name, ranks=NUM_RANKS, **root)
    assert isinstance(shown, ShownCollective)

    def call() -> list[int] | None:
        with hocket.init() as comm:
            given = len(shown.before[comm.rank]) or len(shown.after[comm.rank])
            x = np.full(given, 10**comm.rank, np.int64)
            result = getattr(comm, name)(x, **root)
            return None if result is None else list(result.tolist())

    for blocks, found in zip(shown.after, hocket.run_ranks(call, NUM_RANKS, kind="thread"), strict=True):
        assert (found or []) == [sum(10**rank for rank in one.ranks) for one in blocks]


def test_more_blocks_than_fit_are_drawn_without_labels() -> None:
    assert ">x8[0]<" not in hocket.show("all_to_all", ranks=9).svg()
    assert ">x7[0]<" in hocket.show("all_to_all", ranks=8).svg()


@pytest.mark.parametrize("option", ["--msccl", "--mscclpp"])
def test_a_collective_has_no_msccl_file(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "broadcast", option, "x.xml"]) == 2
    assert f"{option} belongs to algorithms; found 'broadcast'" in capsys.readouterr().err
