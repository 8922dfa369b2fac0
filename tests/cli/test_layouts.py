"""--groups and --dims: every command that names an algorithm takes them and gives them to the algorithm."""

import csv
import io
import json
from collections.abc import Callable
from typing import Any

import pytest

import hocket
from hocket.algorithms import ALGORITHMS
from hocket.cli import main
from hocket.runtime import Communicator
from tests.cli.printed import json_of, text_of

HOSTS = "dgx-h100:2"


def test_groups_and_a_grid_change_what_is_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    call = ("simulate", "all_reduce", "-b", "1M", "--topology", HOSTS, "--algorithm")
    by_host = json_of(capsys, *call, "hierarchical", "--groups", "8,8")
    by_four = json_of(capsys, *call, "hierarchical", "--groups", "4,4,4,4")
    assert (by_host["groups"], by_four["groups"]) == ([8, 8], [4, 4, 4, 4])
    assert by_host["seconds"] != by_four["seconds"]
    assert json_of(capsys, *call, "hierarchical") == by_host, "as in a job on such hosts"
    flat, square = (json_of(capsys, *call, "torus", "--dims", dims) for dims in ("2x8", "4x4"))
    assert (flat["dims"], square["dims"]) == ([2, 8], [4, 4]) and flat["seconds"] != square["seconds"]
    text = text_of(capsys, *call, "hierarchical", "--groups", "8,8")
    assert text.startswith(f"all_reduce hierarchical in 2 groups of 8, 1 MiB on {HOSTS}, 16 ranks: ")


def test_groups_set_the_number_of_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    call = ("all_reduce", "-b", "1M", "--topology", "ring:N", "--groups", "3,2")
    assert json_of(capsys, "simulate", *call, "--algorithm", "hierarchical")["num_ranks"] == 5
    assert json_of(capsys, "explain", *call)["num_ranks"] == 5


def test_what_takes_no_groups_is_compared_without_them(capsys: pytest.CaptureFixture[str]) -> None:
    call = ("all_reduce", "-b", "1M", "--topology", HOSTS, "--groups", "8,8")
    one = json_of(capsys, "simulate", *call, "--algorithm", "hierarchical")
    found = json_of(capsys, "simulate", *call)
    explained = json_of(capsys, "explain", *call)["candidates"]
    for rows in ([found, *found["others"]], explained):
        by_name = {row["algorithm"]: row for row in rows}
        assert by_name["hierarchical"]["seconds"] == one["seconds"] and by_name["ring"]["groups"] is None


def test_a_sweep_has_columns_for_groups_and_dims(capsys: pytest.CaptureFixture[str]) -> None:
    call = ("simulate", "all_reduce", "--sweep", "-b", "1K", "--topology", "ring:6", "--algorithm", "hierarchical,ring")
    rows = list(csv.DictReader(io.StringIO(text_of(capsys, *call, "--groups", "4,2"))))
    assert [(row["groups"], row["dims"]) for row in rows] == [("4 2", ""), ("", "")]


@pytest.mark.parametrize("command", ["simulate", "explain"])
def test_of_all_algorithms_those_that_work_with_groups_are_named(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = text_of(capsys, command, "all_reduce", "--topology", "ring:5", "-b", "1M", "--groups", "3,2")
    assert "torus in a grid of 5x1" in text and "hierarchical in groups of 3, 2" in text
    assert text.partition("; other algorithms take no groups and no grid\n")[1]


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
@pytest.mark.parametrize("command", ["simulate", "explain"])
def test_an_algorithm_in_groups_is_tried_where_another_has_the_same_schedule(
    command: str, collective: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = text_of(capsys, command, collective, "-b", "1K", "--topology", "ring:4", "--groups", "2,2")
    assert "\n hierarchical " in text and "hierarchical in 2 groups of 2" in text
    assert "; other algorithms take no groups" in text


def test_a_proof_of_all_algorithms_for_groups_is_of_those_that_take_them() -> None:
    found = hocket.verify(collective="broadcast", groups=(3, 2))
    names = [one.name for one in found.algorithms]
    assert found and "hierarchical" in names and all(name.startswith("hierarchical") for name in names)
    with pytest.raises(ValueError, match="expected an algorithm of all_gather_v that takes dims; found none"):
        hocket.verify(collective="all_gather_v", dims=(2, 2))


def test_python_takes_them_as_verify_does() -> None:
    layouts: list[tuple[str, dict[str, Any]]] = [("hierarchical", {"groups": (3, 2)}), ("torus", {"dims": [2, 3]})]
    for name, layout in layouts:
        num_ranks = 5 if "groups" in layout else 6
        predicted = hocket.simulate("all_reduce", algorithm=name, num_bytes="1M", topology="ring:N", **layout)
        assert hocket.verify(name, collective="all_reduce", **layout).algorithms[0].ranks == (num_ranks,)
        wanted = ALGORITHMS["all_reduce", name].build(num_ranks, **layout)
        assert predicted.result is not None and predicted.result.schedule.digest == wanted.digest
        explained = hocket.explain("all_reduce", "1M", topology="ring:N", **layout)
        assert predicted.seconds in [one.seconds for one in explained.candidates]


def test_python_refuses_options_of_a_network_without_one() -> None:
    with pytest.raises(ValueError, match=r"expected a topology .*for overhead, dims; found none"):
        hocket.explain("all_reduce", "1M", ranks=4, overhead="1us", dims=(2, 2))


def test_bench_runs_the_groups(bench: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str | None] = []
    configure = Communicator.configure

    def noted(comm: Communicator, *names: str, **options: Any) -> None:
        configure(comm, *names, **options)
        ran.append(options.get("algorithm"))

    monkeypatch.setattr(Communicator, "configure", noted)
    short = ("all_reduce", "-b", "64", "-e", "64", "-n", "1", "-w", "0")
    text = bench(*short, "--algorithm", "hierarchical", "--groups", "2,1")
    assert "all_reduce: 3 ranks on " in text and "algorithm hierarchical in groups of 2, 1\n" in text
    (name,) = set(ran)
    assert name is not None and "# Out of bounds values : 0 OK" in text
    wanted = ALGORITHMS["all_reduce", "hierarchical"].build(3, groups=(2, 1))
    assert ALGORITHMS["all_reduce", name].build(3).digest == wanted.digest
    assert ALGORITHMS["all_reduce", name].source == ALGORITHMS["all_reduce", "hierarchical"].source
    found = json.loads(bench(*short, "--algorithm", "torus,ring", "--dims", "1x2", "--json"))
    assert (found["config"]["num_ranks"], found["config"]["dims"]) == (2, [1, 2])
    assert [row["algorithm"] for row in found["results"]] == ["torus", "ring"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("simulate all_reduce --algorithm ring --topology ring:4 --groups 2,2", "takes them, one of hierarchical, "),
        ("simulate all_reduce --algorithm torus --topology ring:4 -n 4 --dims 3x1", "whose product is 4; found (3, 1)"),
        ("explain broadcast -b 8 --topology ring:4 --dims 2x2", "dims: no algorithm of broadcast takes them; leave "),
        ("simulate scatter --algorithm direct --topology ring:4 --dims 2x2", "dims: no algorithm of scatter takes "),
        ("explain all_reduce -b 8 -n 4 --groups 2,2", "expected a topology (--topology) for groups; found none"),
        ("bench all_reduce --groups 2,2", "; found no algorithm"),
        ("bench all_reduce --algorithm hierarchical -g 3 --groups 2,2", "whose sum is 3; found (2, 2)"),
        ("bench sendrecv --dims 2x2", "expected no --dims for sendrecv, which uses no algorithm"),
    ],
)
def test_what_is_refused_before_anything_runs(
    words: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hocket.runtime.run_ranks", lambda *_, **__: pytest.fail("ranks were started"))
    assert main(words.split()) == 2
    assert said in capsys.readouterr().err
