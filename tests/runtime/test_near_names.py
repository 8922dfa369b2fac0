"""A name that does not exist: the error says which one is near, wherever names are looked up."""

from collections.abc import Callable
from pathlib import Path

import pytest

import hocket
from hocket.algorithms import find
from hocket.errors import HocketError, did_you_mean
from hocket.network import load, parse
from hocket.runtime.choice import allowed, select, tuner_file
from hocket.schedule import COLLECTIVES, Declared, as_reduction, find_collective, numpy_dtype, verify

NODES = "nodes: {gpu: [left, right]}\nlinks: [{between: [left, rihgt], link: infiniband-ndr}]\n"
RING = hocket.algorithms("all_reduce")["ring"]


@pytest.mark.parametrize(
    ("call", "near"),
    [
        (lambda: find_collective("alreduce"), "all_reduce"),
        (lambda: find_collective("AllReduce"), "all_reduce"),
        (lambda: find("rign"), "ring"),
        (lambda: find("rign", "all_gather"), "ring"),
        (lambda: as_reduction("summ"), "sum"),
        (lambda: numpy_dtype("flaot32"), "float32"),
        (lambda: select.required_label("rnak"), "rank"),
        (lambda: allowed.parse("rign"), "ring"),
        (lambda: allowed.parse("alreduces:ring"), "all_reduce"),
        (lambda: parse("toruss:4x4"), "torus"),
        (lambda: load("toruss:4x4"), "torus"),
        (lambda: parse("torus:4x4,bandwith=1GB/s"), "bandwidth"),
        (lambda: parse("torus:4x4,link=infiniband-hdd"), "infiniband-hdr"),
        (lambda: parse("fat-tree:8,routing=ecpm"), "ecmp"),
        (lambda: load(NODES), "right"),
        (lambda: parse("torus:2x2").place(["rnak1"]), "rank1"),
        (lambda: parse("torus:2x2").with_links("rank0->rnak1", seconds=1), "rank1"),
        (lambda: verify(RING.build(2), declared=Declared(labels=frozenset({"rank_ordre"}))), "rank_order"),
    ],
)
def test_the_error_says_which_name_is_near(call: Callable[[], object], near: str) -> None:
    with pytest.raises((ValueError, HocketError), match=rf"; did you mean '{near}'\?"):
        call()


@pytest.mark.parametrize(
    ("line", "near"),
    [
        ("alreduce,0,-1,ring,,-1,-1,-1", "allreduce"),
        ("allreduce,0,-1,rign,,-1,-1,-1", "ring"),
        ("allreduce,0,-1,ring,simpel,-1,-1,-1", "simple"),
    ],
)
def test_so_does_the_error_of_a_tuner_file(line: str, near: str, tmp_path: Path) -> None:
    (tmp_path / "tuner.conf").write_text(line)
    with pytest.raises(ValueError, match=rf"; did you mean '{near}'\?"):
        tuner_file.read(tmp_path / "tuner.conf")


def test_so_do_the_errors_of_a_communicator() -> None:
    with hocket.init(0, 1) as comm:
        for call, near in (
            (lambda: comm.configure("alreduce", order="rank"), "all_reduce"),
            (lambda: comm.configure(order="rnak"), "rank"),
        ):
            with pytest.raises(ValueError, match=rf"; did you mean '{near}'\?"):
                call()


def test_nothing_is_said_where_nothing_is_near() -> None:
    assert did_you_mean("frobnicate", COLLECTIVES) == did_you_mean(None, COLLECTIVES) == ""
