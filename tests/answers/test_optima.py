"""hocket.optimum and hocket.synthesise: what they say, what they keep, and that what they make runs."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import hocket
from hocket.answers import StepSchedule, cases_of, stepwise
from hocket.answers.synthesis.synthesised_algorithm import synthesised_on
from hocket.cli import main
from hocket.errors import TopologyError
from hocket.network import parse
from hocket.runtime import cache
from hocket.schedule import msccl, verify

_A100 = "dgx-a100:2,pcie=no,direct-bandwidth=300GB/s,nic-bandwidth=25GB/s"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that no other test fills."""
    monkeypatch.setenv("HOCKET_CACHE", str(tmp_path / "cache"))
    synthesised_on.cache_clear()
    return tmp_path / "cache" / "forests"


@pytest.fixture(autouse=True)
def _no_trace_in_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    from hocket.algorithms import registry

    before = dict(registry.REGISTERED)
    yield
    registry.REGISTERED.clear()
    registry.REGISTERED.update(before)


def test_the_optimum_names_the_cut() -> None:
    found = hocket.optimum("all_gather", topology="dgx-h100:4,pcie=no,direct-bandwidth=450GB/s,nic-bandwidth=50GB/s")
    assert found.algbw == pytest.approx(516.129032e9) and found.busbw == pytest.approx(500e9)
    assert (found.cut_ranks, found.num_cut_links, found.cut_bytes_per_second) == (31, 2, 500e9)
    assert found.cut_links == ("nvswitch0->gpu0", "nic0->gpu0") and found.cut_behind == ("gpu0",)
    assert "bottleneck cut: 500 GB/s over 2 links, from 31 ranks to 1" in str(found)
    half = hocket.optimum("AllReduce", topology="ring:8", links="bandwidth=1GB/s")
    assert half.algbw == pytest.approx(8e9 / 7) and half.changes
    assert "best known algbw" in str(half)


def test_a_synthesised_schedule_runs(tmp_path: Path) -> None:
    def program() -> None:
        with hocket.init() as comm:
            made = hocket.synthesise("all_reduce", topology="dgx-1v:1,pcie=no", ranks=4)
            x = np.arange(1000.0) * (comm.rank + 1)
            np.testing.assert_array_equal(comm.all_reduce(x, algorithm="synthesised"), np.arange(1000.0) * 10)
            blocks = hocket.synthesise("scatter", topology="mesh:2x2", root=3)
            assert made.num_steps and blocks.root == 3
            own = comm.scatter(np.arange(8), root=3, out=np.empty(2, np.int64), algorithm="synthesised")
            assert own.tolist() == [2 * comm.rank, 2 * comm.rank + 1]
            other = comm.scatter(np.arange(8), root=0, out=np.empty(2, np.int64), algorithm="synthesised")
            assert other.tolist() == own.tolist()  # for this root it makes another schedule

    hocket.run_ranks(program, 4, kind="thread")


def test_a_written_schedule_is_the_one_that_was_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for collective in ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce"):
        file = tmp_path / f"{collective}.xml"
        assert main(["optimum", collective, "--topology", "torus:3x3", "--msccl", str(file)]) == 0
        assert "proved" in capsys.readouterr().out
        read = msccl.read(file)
        made = hocket.synthesise(collective, topology="torus:3x3").schedule
        assert (read.num_ranks, read.num_chunks) == (made.num_ranks, made.num_chunks)
        verify(read)


def test_without_a_network_the_error_says_how_to_give_one() -> None:
    def program() -> None:
        with hocket.init() as comm, pytest.raises(ValueError, match=r"hocket.synthesise\('all_gather', topology=...\)"):
            comm.all_gather(np.ones(4), algorithm="synthesised")

    hocket.run_ranks(program, 2, kind="thread")


def test_simulate_and_explain_take_it_with_a_topology() -> None:
    found = hocket.simulate("all_gather", "4G", topology=_A100, algorithm="synthesised,ring")
    assert found.algorithm == "synthesised" and found.others[0].algorithm == "ring"
    assert found.algbw == pytest.approx(346.67e9, rel=0.02) and found.num_steps == 6
    told = hocket.explain("all_gather", "1G", topology="ring:5", algorithm="synthesised")
    assert "synthesised" in {one.algorithm for one in told.candidates} and told.asked == ("synthesised",)
    hocket.synthesise("all_gather", topology="line:5")
    told = hocket.explain("all_gather", "1G", topology="ring:5")
    assert "synthesised" not in {one.algorithm for one in told.candidates}
    with pytest.raises(ValueError, match="all_to_all has no known optimum"):
        cases_of("all_to_all", ["ring:4"], algorithms=["synthesised"])


def test_ranks_behind_idle_accelerators_are_told_of_forwarding() -> None:
    line = hocket.topology("dgx-1v:1,pcie=no").topology.place([0, 7])
    with pytest.raises(
        TopologyError, match=r"disconnected: .*; accelerators that are no ranks forward only with --for"
    ):
        hocket.optimum("all_gather", topology=line)
    assert hocket.optimum("all_gather", topology=line, forwarding=True).algbw > 0


def test_where_idle_accelerators_forward_the_bound_counts_them() -> None:
    made = hocket.synthesise("all_gather", 4, topology="dgx-1v:1", forwarding=True)
    assert "on dgx-1v:1, idle accelerators forward, latencies 0" in str(made)
    found = hocket.simulate("all_gather", "4G", topology=made.network, algorithm=made.algorithm)
    assert 1 <= found.ratio < 1.02
    assert found.seconds < 0.8 * hocket.simulate("all_gather", "4G", 4, topology="dgx-1v:1").bound_seconds


def test_show_and_verify_take_it_with_a_topology(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = str(tmp_path / "plan.json")
    command = ["synthesised", "--topology", "torus:3x3", "--collective", "broadcast"]
    assert main(["show", *command, "--root", "4", "--mscclpp", plan]) == 0
    assert "broadcast synthesised, 9 ranks, root 4" in capsys.readouterr().out
    assert main(["verify", plan]) == 0
    capsys.readouterr()
    assert main(["verify", *command, "--json"]) == 0
    (proved,) = json.loads(capsys.readouterr().out)["algorithms"]
    assert (proved["ranks"], proved["num_schedules"]) == ([9], 9)
    assert hocket.show("synthesised", topology="ring:64").num_ranks == 64
    assert hocket.show("synthesised", 4, topology="ring:8").collective == "all_reduce"
    assert hocket.verify("synthesised", 4, topology=hocket.topology("ring:8")).algorithms[0].ranks == (4,)
    for view in (hocket.show, hocket.verify):
        with pytest.raises(ValueError, match="found ring; leave the topology out"):
            view("ring", topology="ring:8")
    with pytest.raises(ValueError, match="expected one rank count, or none for all ranks; found 3"):
        hocket.verify("synthesised", "2-4", topology="ring:8")
    with pytest.raises(ValueError, match=r"found 'ring:4'"):
        hocket.show("broadcast", topology="ring:4")
    assert main(["show", "synthesised"]) == 2
    assert "hocket show, verify, simulate and explain take it with --topology" in capsys.readouterr().err


def test_forests_are_kept_and_broken_files_ignored(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = hocket.synthesise("all_gather", topology="mesh:3x3")
    (file,) = own_cache.iterdir()

    def refuse(*_: object) -> None:
        raise AssertionError("the forest is kept, so it is not searched again")

    with monkeypatch.context() as patched:
        patched.setattr("hocket.network.synthesis.forests.find_forest", refuse)
        assert hocket.synthesise("all_gather", topology="mesh:3x3").schedule.digest == first.schedule.digest
    whole = file.read_bytes()
    torn = cache.digest(b"torn").encode() + b"torn"
    for content in (b"", whole[:-1], whole[:70] + b"\0" + whole[71:], b"\xff" * 100, torn):
        file.write_bytes(content)
        assert hocket.synthesise("all_gather", topology="mesh:3x3").schedule.digest == first.schedule.digest
        assert file.read_bytes() == whole
    hocket.synthesise("all_gather", topology=parse("mesh:3x3").with_links("", bytes_per_second=2e9))
    assert len(list(own_cache.iterdir())) == 2


def test_the_command_prints_json_and_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optimum", "scatter", "--topology", "ring:6", "--root", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["root"], found["cut_ranks"], found["cut_before"]) == (2, 1, ["rank2"])
    assert main(["optimum", "all_to_all", "--topology", "ring:6"]) == 2
    assert "every pair of ranks has data of its own" in capsys.readouterr().err
    assert main(["optimum", "all_gather", "--root", "1", "--topology", "ring:6"]) == 2
    assert main(["optimum", "all_gather", "--matching", "1", "--forwarding", "--topology", "ring:6"]) == 2


@pytest.mark.parametrize("call", [hocket.optimum, hocket.synthesise, hocket.simulate])
def test_arguments_of_a_wrong_type_are_told(call: Callable[..., object]) -> None:
    for options, message in (
        ({"topology": 5}, "topology: expected KIND:ARGS, a file, or what hocket.topology returns; found 5"),
        ({"topology": "ring:4", "ranks": "3"}, "ranks: expected a number of ranks, such as 4; found '3'"),
        ({"topology": "ring:4", "root": "1"}, "root: expected a rank, such as 0; found '1'"),
    ):
        with pytest.raises(TypeError, match=message):
            call("broadcast", **options)


def test_what_cannot_be_written_is_not_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "gather.xml"
    for search in ([], ["--matching", "1"]):
        assert main(["optimum", "gather", "--topology", "ring:4", *search, "--msccl", str(file), "--json"]) == 2
        assert "a collective that it has" in json.loads(capsys.readouterr().out)["error"] and not file.exists()


def test_step_by_step_schedules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["optimum", "all_gather", "--topology", "dgx-1v:1"]
    file = tmp_path / "two.xml"
    assert main([*command, "--tuple", "1,2,2", "--msccl", str(file)]) == 0
    verify(msccl.read(file))
    assert main([*command, "--tuple", "3,2,4"]) == 1
    assert "no schedule has 3 chunks per block, 2 steps, 4 rounds" in capsys.readouterr().out
    assert main(["optimum", "gather", "--topology", "ring:6", "--matching", "2", "--json"]) == 0
    matched = json.loads(capsys.readouterr().out)
    assert (matched["num_steps"], matched["root"]) == (5, 0)
    for search in (["--matching", "1"], ["--tuple", "1,2,2"]):
        assert main(["optimum", "broadcast", "--topology", "ring:4", "--root", "9", *search]) == 2
        assert "expected a root from 0 to 3, found 9" in capsys.readouterr().err
        assert main(["optimum", "all_gather", "--topology", "ring:1", *search]) == 2
        assert "expected 2 ranks or more, found 1" in capsys.readouterr().err
    found = stepwise("broadcast", topology="hypercube:3", chunks=1)
    assert isinstance(found, StepSchedule) and found.num_steps == 3
    with pytest.raises(ValueError, match="one of them"):
        stepwise("broadcast", topology="ring:4")
