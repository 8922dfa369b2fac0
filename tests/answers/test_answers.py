"""hocket.verify, simulate, explain, show, topology, algorithms: the same as the commands, and pages for notebooks."""

import dataclasses
import json
import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import hocket
from hocket.answers import Answer
from hocket.cli import main
from hocket.network import Affinity, Topology, affinity
from hocket.view.networks import topology_text

BROKEN = '''
import hocket


@hocket.algorithm("all_gather", name="half", chunks="P", ranks=("2 or more", lambda p: p > 1))
def half(schedule):
    """Only the first half of the ring."""
    p, rank = schedule.num_ranks, schedule.ranks
    for i in schedule.repeat(p // 2):
        schedule.copy(src=rank, dst=(rank + 1) % p, chunk=(rank - i) % p)
'''
ASKED: dict[str, tuple[Any, list[str]]] = {
    "verify": (lambda: hocket.verify("ring", ranks="1-4"), ["verify", "ring", "--ranks", "1-4"]),
    "simulate": (
        lambda: hocket.simulate("all_reduce", algorithm="ring", num_bytes="64K", topology="torus:2x2"),
        ["simulate", "all_reduce", "--algorithm", "ring", "-b", "64K", "--topology", "torus:2x2"],
    ),
    "simulate-all": (
        lambda: hocket.simulate("all_gather", num_bytes=1 << 20, topology="dgx-h100:1", ranks=4),
        ["simulate", "all_gather", "-b", "1M", "--topology", "dgx-h100:1", "-n", "4"],
    ),
    "explain-network": (
        lambda: hocket.explain("AllReduce", "64K", topology="torus:2x2"),
        ["explain", "all_reduce", "-b", "64K", "--topology", "torus:2x2"],
    ),
    "explain-host": (
        lambda: hocket.explain("broadcast", 4096, ranks=2),
        ["explain", "broadcast", "-b", "4K", "--ranks", "2"],
    ),
    "show": (lambda: hocket.show("ring", ranks=3), ["show", "ring", "--ranks", "3"]),
    "show-dims": (lambda: hocket.show("torus", dims=(2, 2)), ["show", "torus", "--dims", "2x2"]),
    "show-collective": (lambda: hocket.show("all_to_all", ranks=3), ["show", "AllToAll", "-n", "3"]),
    "show-rooted": (lambda: hocket.show("scatter", root=2), ["show", "scatter", "--root", "2"]),
    "show-pipeline": (
        lambda: hocket.pipeline("zb-h1", ranks=2, microbatches=3, times={"W": 0.5}),
        ["show", "pipeline", "zb-h1", "-p", "2", "-m", "3", "--times", "W=0.5"],
    ),
    "topology": (lambda: hocket.topology("dgx-a100:1"), ["show", "topology", "dgx-a100:1"]),
}


def without_seconds(text: str) -> str:
    return text.rpartition(", in ")[0] if "schedules proved" in text else text


@pytest.mark.parametrize("name", ASKED)
def test_an_answer_is_what_the_command_prints(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    ask, words = ASKED[name]
    answer = ask()
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert without_seconds(str(answer)) == without_seconds(printed.rstrip("\n")) and len(printed) > 100
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    given = json.loads(json.dumps(answer.as_json()))
    if name == "verify":
        del told["seconds"], given["seconds"]
    assert told == given and told


@pytest.mark.parametrize("name", ASKED)
def test_an_answer_is_frozen_and_has_a_page_for_notebooks(name: str) -> None:
    answer = ASKED[name][0]()
    assert isinstance(answer, Answer) and repr(answer).count("\n") == 0 and len(repr(answer)) < 200
    field = dataclasses.fields(answer)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(answer, field, None)
    page = answer._repr_html_()
    has_picture = name.partition("-")[0] in ("simulate", "show", "topology")
    assert ("<svg" in page) == bool(answer.svg()) == has_picture
    if has_picture:
        assert ElementTree.fromstring(answer.svg()).tag.endswith("svg")
    if name.partition("-")[0] != "show":
        assert "<pre" in page and str(answer).splitlines()[0] in unescape(re.sub("<[^>]*>", "", page))


def test_a_proof_that_fails_is_false_and_names_the_smallest_count_first(tmp_path: Path) -> None:
    file = tmp_path / "half.py"
    file.write_text(BROKEN)
    proof = hocket.verify(str(file), ranks="1-6")
    assert not proof and not proof.holds
    assert [failure.num_ranks for failure in proof.failures] == [3, 4, 5, 6]
    assert {(failure.law, failure.name, failure.collective) for failure in proof.failures} == {
        (2, "half", "all_gather")
    }
    lines = str(proof).splitlines()
    assert lines[0].startswith("all_gather half, 3 ranks: ") and "half.py:" in lines[0]
    assert lines[1] == "    law 2 is broken for 4-6 ranks, too"
    assert lines[2].startswith("0 of 1 algorithms hold") and len(lines) == 3
    assert hocket.verify(str(file), ranks=2)


def test_a_file_that_cannot_run_is_a_failure(tmp_path: Path) -> None:
    file = tmp_path / "wrong.py"
    file.write_text("import hocket\n1 / 0\n")
    proof = hocket.verify(str(file))
    assert not proof and proof.algorithms == () and "wrong.py:2" in proof.failures[0].message


UNGUARDED = """
import hocket
import hocket.answers.proofs
import os
hocket.answers.proofs._MIN_POOL_WORK = 0
os.sched_getaffinity = lambda _: {0, 1}
print("main program")
@hocket.algorithm("all_gather", name="of_main", chunks="P")
def of_main(schedule):
    with schedule.step():
        schedule.copy(src=schedule.ranks[:, None], dst=schedule.ranks, chunk=schedule.ranks[:, None])
for what in ("whole.py", "of_main", "dissemination", None):
    print(bool(hocket.verify(what, "1-3", collective=None if what else "all_gather")))
"""


@pytest.mark.parametrize("by", ["file", "standard input"])
def test_a_main_program_without_a_guard_can_ask_for_a_proof(by: str, tmp_path: Path) -> None:
    (tmp_path / "whole.py").write_text(BROKEN.replace("p // 2", "p - 1"))
    (tmp_path / "main.py").write_text(UNGUARDED)
    done = subprocess.run(
        [sys.executable, "main.py" if by == "file" else "-"],
        input=UNGUARDED if by == "standard input" else "",
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )
    assert (done.stdout.split("\n"), done.stderr) == (["main program", *["True"] * 4, ""], "")


def test_a_network_with_changed_links_remembers_what_was_changed() -> None:
    network = hocket.topology("torus:2x2", links=["latency=1us"])
    said = "nic links 1.00 us (default 0.500 us)"
    assert network.changes == (said,) and f"changed: {said}\n" in str(network)
    found = hocket.simulate("barrier", topology=network, ranks=2, overhead="2us")
    assert found.changes == (said, "overhead 2.00 us (default 0)")


def test_how_devices_reach_each_other_is_computed_when_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    computed = []

    def counted(topology: Topology) -> Affinity:
        computed.append(topology)
        return affinity(topology)

    monkeypatch.setattr(topology_text, "affinity", counted)
    network = hocket.topology("dgx-h100:1")
    assert network.num_ranks == 8 and network.svg() and not computed
    assert network.devices is not None and network.devices[8] == "nic0" and network.ways is not None
    assert network.ways[0][1] == "NV18" and network.as_json()["ways"] == network.ways
    assert network.sockets is not None and len(network.sockets) == 16 and network.cards == ("",) * 16
    assert len(computed) == 1
    large = hocket.topology("ring:257")
    assert large.devices is large.ways is large.sockets is large.cards is None and len(computed) == 1


def test_a_prediction_has_typed_numbers_and_the_load_of_every_link() -> None:
    found = hocket.simulate("all_reduce", num_bytes="64M", topology=hocket.topology("torus:2x2"))
    assert found.ratio is not None and found.ratio > 1 - 1e-9 and found.seconds == pytest.approx(found.bound_seconds)
    assert found.result is not None and found.result.link_bytes.max() > 0
    assert [other.seconds for other in found.others] == [other.seconds for other in found.others if other.others == ()]
    assert min(other.seconds for other in found.others) >= found.seconds
    ring = hocket.simulate("all_reduce", algorithm="ring,direct", num_bytes="64M", topology="torus:2x2")
    assert {ring.algorithm, ring.others[0].algorithm} == {"ring", "direct"}


def test_bad_arguments_are_refused_before_anything_runs() -> None:
    for ask, words in (
        (lambda: hocket.verify("ring", ranks="4-1"), "is not a rank count"),
        (lambda: hocket.verify("ring", ranks=0), "expected rank counts from 1"),
        (lambda: hocket.simulate("all_reduce", num_bytes="64X", topology="torus:2x2"), "expected a size in bytes"),
        (lambda: hocket.simulate("barrier", num_bytes=8, topology="torus:2x2"), "barrier moves no data"),
        (lambda: hocket.explain("all_reduce", 8), "found neither"),
        (lambda: hocket.explain("barrier", 8, ranks=2), "barrier moves no data"),
        (lambda: hocket.explain("all_reduce", 8, topology="torus:2x2", measure=True), "measure"),
        (lambda: hocket.show("ring", root=1), "expected no root"),
        (lambda: hocket.show("all_gather", root=1), "expected no root"),
        (lambda: hocket.show("gather", root=4), "gather: expected a root from 0 to 3, found 4"),
        (lambda: hocket.show("gather", ranks=65), "gather: expected 1 to 64 ranks"),
        (lambda: hocket.show("gather", collective="gather"), "gather: expected no collective, which is for algorithms"),  # type: ignore[call-overload]
        (
            lambda: hocket.verify("torus", "1-16", dims=(2, 8)),
            "16 ranks; found 16 rank counts from 1 to 16",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            ask()
    for ask in (
        lambda: hocket.verify("ring", ranks=["x"]),  # type: ignore[list-item]
        lambda: hocket.verify("ring", ranks=2.5),  # type: ignore[arg-type]
        lambda: hocket.show("ring", ranks="x"),  # type: ignore[arg-type]
        lambda: hocket.explain("all_reduce", 64, ranks="x"),  # type: ignore[call-overload]
        lambda: hocket.simulate("all_reduce", ranks="x", topology="torus:2x2"),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError, match=r"ranks: expected a number of ranks, such as 4; found ('x'|2.5)"):
            ask()
    with pytest.raises(hocket.errors.ScheduleError, match="all_reduced"):
        hocket.algorithms("all_reduced")


@pytest.mark.parametrize("before", ["", "import hocket.algorithms; ", "hocket.init; ", "hocket.algorithm; "])
def test_the_algorithms_of_a_collective_are_one_call_away(before: str) -> None:
    program = f"import hocket; {before}print(*hocket.algorithms('AllReduce'))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert {"ring", "direct", "tree"} <= set(done.stdout.split())


def test_the_algorithms_of_a_collective_are_read_only() -> None:
    known = hocket.algorithms("all_gather")
    assert known["ring"].collective == "all_gather" and len(known) == len(list(known)) > 5
    with pytest.raises(TypeError):
        known["mine"] = known["ring"]  # type: ignore[index]
    with pytest.raises(TypeError):
        hocket.algorithms.ALGORITHMS["all_gather", "mine"] = known["ring"]  # type: ignore[attr-defined]
    with pytest.raises(KeyError, match=r"one of .*ring.*; found 'rign'"):
        known["rign"]
    with pytest.raises(KeyError, match="did you mean 'ring'"):
        known["rig"]
    with pytest.raises(TypeError, match=r"expected a collective, one of all_reduce, .*; found None"):
        hocket.algorithms()  # type: ignore[call-arg]
    assert "for a collective, by name" in (hocket.algorithms.__doc__ or "")
    assert max(map(len, str(hocket.algorithms("all_reduce")).splitlines())) < 160
    head, *rows = str(known).splitlines()
    assert head.split()[:4] == ["algorithm", "ranks", "steps", "sent"] and len(rows) == len(known)
    assert any(row.startswith("ring ") and "P - 1" in row for row in rows)
    assert known._repr_html_().count("<tr>") == len(known) + 1


def test_an_answer_prints_itself_without_a_console(capsys: pytest.CaptureFixture[str]) -> None:
    hocket.show("ring", ranks=2).print()
    assert capsys.readouterr().out.startswith("all_reduce ring, 2 ranks\n")


def test_the_names_of_a_package_are_those_for_users() -> None:
    for package in (hocket, hocket.answers):
        assert not {"TYPE_CHECKING", "lazy", "lazy_names", "_"} & set(dir(package)) and "__name__" in dir(package)


def test_importing_everything_does_not_import_torch() -> None:
    program = "from hocket import *\nimport sys\nassert 'torch' not in sys.modules, 'torch was imported'\nprint(verify)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert "function verify" in done.stdout


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("show", {"algorithm": "torus", "dims": "2x2"}),
        ("verify", {"algorithm": "hierarchical", "groups": 4}),
        ("simulate", {"collective": "all_reduce", "topology": "ring:N", "groups": "3,2"}),
        ("explain", {"collective": "all_reduce", "topology": "ring:4", "groups": [2.5]}),
    ],
)
def test_groups_and_dims_are_whole_numbers(name: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^(groups|dims): expected whole numbers, such as \(., .\); found "):
        getattr(hocket, name)(**arguments)


def test_ranks_are_given_by_place_or_by_name() -> None:
    assert hocket.verify("ring", 4).algorithms == hocket.verify("ring", ranks=4).algorithms
    assert hocket.show("ring", 3) == hocket.show("ring", ranks=3)
    assert hocket.show("broadcast", 3) == hocket.show("broadcast", ranks=3)
    assert hocket.topology("torus:2x2", 2).num_ranks == 2
    on: dict[str, Any] = {"topology": "torus:2x2", "algorithm": "ring"}
    assert hocket.simulate("all_reduce", "1M", 2, **on) == hocket.simulate("all_reduce", num_bytes="1M", ranks=2, **on)
    assert hocket.explain("all_reduce", "1M", 2, topology="torus:2x2").num_ranks == 2
    assert hocket.explain("all_reduce", "1M", 2).num_ranks == 2


def test_the_size_has_one_default() -> None:
    simulated = hocket.simulate("all_reduce", topology="torus:2x2", algorithm="ring")
    explained = hocket.explain("all_reduce", topology="torus:2x2")
    assert simulated.num_bytes == explained.num_bytes == hocket.explain("all_reduce", ranks=2).num_bytes == 64 << 20


def test_a_text_is_one_change_of_links() -> None:
    slow = "bandwidth=1GB/s"
    simulated = hocket.simulate("all_reduce", topology="torus:2x2", algorithm="ring", links=slow)
    assert simulated == hocket.simulate("all_reduce", topology="torus:2x2", algorithm="ring", links=[slow])
    explained = hocket.explain("all_reduce", topology="torus:2x2", links=slow)
    assert explained.candidates[0].changes == simulated.changes == hocket.topology("torus:2x2", links=slow).changes


@pytest.mark.parametrize("where", [{"ranks": 4}, {"topology": "torus:2x2"}])
def test_an_algorithm_of_ones_own_is_explained_beside_the_others(where: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(BROKEN.replace("p // 2", "p - 1").replace("half", "whole"))
    found = hocket.explain("all_gather", "64K", algorithm=f"{file}:whole", **where)
    twins = {name for one in found.candidates for name in getattr(one, "twins", ())}
    assert f"{file}:whole" in {one.algorithm for one in found.candidates} | twins and found.asked == (f"{file}:whole",)
    file.write_text(BROKEN)
    with pytest.raises(hocket.errors.VerifyError, match="law 2"):
        hocket.explain("all_gather", "64K", algorithm=f"{file}:half", **where)


def test_what_the_decorator_returns_is_an_algorithm_to_ask_about(monkeypatch: pytest.MonkeyPatch) -> None:
    @hocket.algorithm("all_gather", name="own_object", chunks="P")
    def own(schedule: Any) -> None:
        with schedule.step():
            schedule.copy(src=schedule.ranks[:, None], dst=schedule.ranks, chunk=schedule.ranks[:, None])

    monkeypatch.setattr("hocket.answers.proofs._MIN_POOL_WORK", 0)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    assert hocket.verify(own, "1-3").algorithms[0].ranks == (1, 2, 3)
    assert hocket.verify(own.refine(2), 3) and hocket.verify(hocket.algorithms("all_gather")["ring"], "2-4")
    assert (hocket.show(own, ranks=3).name, hocket.show(own.refine(2)).num_chunks) == ("own_object", 8)
    shown = hocket.show(own.build(5))
    assert (shown.num_ranks, shown.num_steps, shown.breach) == (5, 1, None) and "law 1, 2" not in str(shown)
    assert hocket.show(hocket.algorithms("broadcast")["binomial"].build(4, 2)).root == 2
    found = hocket.simulate("all_gather", algorithm=[own, "ring"], topology="torus:2x2", num_bytes="64K")
    assert {found.algorithm, found.others[0].algorithm} == {"own_object", "ring"}
    assert hocket.simulate("all_gather", algorithm=own, topology="torus:2x2").svg()
    explained = hocket.explain("all_gather", "64K", algorithm=own, topology="torus:2x2")
    assert "own_object" in {one.algorithm for one in explained.candidates}
    for ask in (
        lambda: hocket.simulate("broadcast", algorithm=own, topology="torus:2x2"),
        lambda: hocket.verify(own, collective="broadcast"),
    ):
        with pytest.raises(ValueError, match="expected an algorithm for broadcast; found all_gather own_object "):
            ask()
    with pytest.raises(ValueError, match=r"has registered; found all_gather own_object.refine"):
        hocket.explain("all_gather", 64, algorithm=own.refine(2), ranks=2)
    with pytest.raises(TypeError, match=r"or what @hocket.algorithm\(...\) returns; found function"):
        hocket.show(ask)  # type: ignore[arg-type]


def test_nothing_is_reported_as_leaked_at_the_end() -> None:
    words = ["explain", "all_reduce", "-b", "64K", "--topology", "dgx-h100:2"]
    done = subprocess.run(
        [sys.executable, "-m", "hocket", *words], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr == ""


def test_an_algorithm_of_this_process_is_proved_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hocket.answers.proofs._MIN_POOL_WORK", 0)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    cell = BROKEN.replace("p // 2", "p - 1").replace('"half"', '"in_cell"')
    exec(compile(cell, "<ipython-input-1>", "exec"), {})
    proof = hocket.verify("in_cell", "2-4")
    assert proof and proof.algorithms[0].ranks == (2, 3, 4)
    everything = hocket.verify(collective="all_gather", ranks="1-3")
    assert everything and {"ring", "in_cell"} <= {one.name for one in everything.algorithms}
