"""An MSCCL file is an algorithm like any other: shown, proved, and run."""

import json
from pathlib import Path

import numpy as np
import pytest

import hocket
from hocket.algorithms import ALGORITHMS, find
from hocket.cli import main
from hocket.errors import ScheduleError, VerifyError
from hocket.schedule import msccl
from hocket.testing import check_schedule

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "msccl.xml")


def test_the_example_is_what_show_writes(tmp_path: Path) -> None:
    file = tmp_path / "ring.xml"
    assert main(["show", "ring", "--collective", "all_reduce", "-n", "4", "--msccl", str(file)]) == 0
    assert Path(EXAMPLE).read_text().endswith("-->\n" + file.read_text())
    (one,) = find(EXAMPLE)
    assert (one.name, one.collective, one.source) == ("ring", "all_reduce", f"{EXAMPLE}:1")
    assert msccl.write(one.build(4), one.name) == file.read_text()


def test_the_example_is_proved_and_its_plans_run_as_the_reference(capsys: pytest.CaptureFixture[str]) -> None:
    (one,) = find(EXAMPLE, "all_reduce")
    assert check_schedule(one).labels == {"same_on_all_ranks"}
    assert main(["verify", EXAMPLE, "--json"]) == 0  # Of the rank counts 1-16, the file's own is proved.
    (proof,) = json.loads(capsys.readouterr().out)["algorithms"]
    assert (proof["name"], proof["ranks"], proof["num_schedules"]) == ("ring", [4], 1)
    assert main(["show", EXAMPLE, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_steps"] == 6


@pytest.mark.ring2  # starts ranks
def test_the_example_runs() -> None:
    def rank_main() -> tuple[list[float], list[float], str]:
        with hocket.init() as comm:
            x = np.random.default_rng(comm.rank).normal(size=1003).astype(np.float32)
            ours = comm.all_reduce(x, algorithm="ring", out=np.empty_like(x))
            comm.all_reduce(x, algorithm=EXAMPLE)
            try:
                comm.subgroup([0, 1, 2, 3]).all_gather(x, algorithm=EXAMPLE)
            except ValueError as error:
                return x.tolist(), ours.tolist(), str(error)
            return [], [], ""

    for theirs, ours, error in hocket.run_ranks(rank_main, 4, kind="thread"):
        # The chunks of the example start their round at the same ranks as those of the built-in ring.
        assert theirs == ours and len(ours) == 1003
        assert "all_gather" in error


def test_a_plan_is_an_algorithm_like_any_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "plan.json")
    assert main(["show", "ring", "--collective", "all_reduce", "-n", "4", "--mscclpp", file]) == 0
    capsys.readouterr()
    (one,) = find(file, "all_reduce")
    assert one.name.startswith("all_reduce_ring_") and one.source == f"{file}:1"
    assert "MSCCL++ plan for 4 GPUs with 4 thread blocks" in one.doc
    assert check_schedule(one).labels == {"same_on_all_ranks"}
    assert find(f"{file}:{one.name}")[0].collective == "all_reduce"
    assert main(["verify", file, "--json"]) == 0
    (proof,) = json.loads(capsys.readouterr().out)["algorithms"]
    assert (proof["name"], proof["ranks"], proof["num_schedules"]) == (one.name, [4], 1)
    wrong = tmp_path / "wrong.json"
    wrong.write_text(Path(file).read_text().replace('"name":"res"', '"name":"what"'))
    with pytest.raises(ScheduleError, match=r"wrong.json: gpu 0, tb 0, op 8 \(what\): expected an op among"):
        find(str(wrong))


@pytest.mark.parametrize("key", [("broadcast", "binomial"), ("reduce", "binomial")], ids="-".join)
def test_a_file_for_one_root_does_for_all(key: tuple[str, str], tmp_path: Path) -> None:
    file = tmp_path / "one.xml"
    file.write_text(msccl.write(ALGORITHMS[key].build(5, 2), ""))
    (one,) = find(str(file))
    assert one.name == "one"
    for root in range(5):
        assert one.verify(5, root).root == root


def test_what_a_file_cannot_be(tmp_path: Path) -> None:
    (one,) = find(EXAMPLE)
    with pytest.raises(ValueError, match=r"expected exactly 4 ranks, found 3"):
        one.build(3)
    with pytest.raises(ValueError, match=r"expected an algorithm, .* FILE.json; found no file 'nowhere.xml'"):
        find("nowhere.xml")
    with pytest.raises(
        ValueError, match=r"expected an algorithm, one of those in .*, ring \(all_reduce\); found .*:tree"
    ):
        find(f"{EXAMPLE}:tree")
    wrong = tmp_path / "wrong.xml"
    wrong.write_text(Path(EXAMPLE).read_text().replace("rrcs", "rrs"))
    [one] = find(str(wrong))
    with pytest.raises(VerifyError, match="law 2"):
        one.verify(next(filter(one.allows, range(1, 65))))
    wrong.write_text(Path(EXAMPLE).read_text().replace("rrcs", "what"))
    with pytest.raises(ScheduleError, match=r"wrong.xml:\d+: gpu 0, tb 0, step 3: expected type= one of"):
        find(str(wrong))


def test_a_schedule_that_the_format_cannot_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "direct.xml"
    assert main(["show", "direct", "-n", "4", "--msccl", str(file)]) == 2
    assert "a change of rank_order" in capsys.readouterr().err
    assert not file.exists()
