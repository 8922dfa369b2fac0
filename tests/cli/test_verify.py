import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hocket.algorithms import ALGORITHMS
from hocket.cli import main
from hocket.errors import ResourceError

OWN = """
from hocket.algorithms import algorithm

even = ("an even number of", lambda p: p % 2 == 0)

@algorithm("all_gather", name="{name}", chunks=lambda p: p, steps=lambda p: {steps}, ranks=even)
def everybody_gives(schedule):
    p = schedule.num_ranks
    with schedule.step():
        for rank in range(p):
            for peer in range(p):
                if peer != rank{flaw}:
                    schedule.copy(src=rank, dst=peer, chunk=rank{shift})
"""

HUGE = """
algorithm("all_gather", name="fine", chunks=lambda p: p << 27)(lambda schedule: None)
algorithm("all_gather", name="finer", chunks=lambda p: p << 40)(lambda schedule: None)

@algorithm("all_gather", name="far", chunks=lambda p: 2 * p)
def far(schedule):
    with schedule.step():
        schedule.copy(src=0, dst=1, src_chunk=0, dst_chunk=2**31 - 2, dst_buffer="scratch")
"""


def write(folder: Path, *, name: str = "mine", steps: str = "1", flaw: str = "", shift: str = "") -> str:
    file = folder / "own.py"
    file.write_text(OWN.format(name=name, steps=steps, flaw=flaw, shift=shift))
    return str(file)


def verify(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["verify", *arguments])
    return code, capsys.readouterr().out


def test_all_algorithms_hold(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = verify(capsys, "--all", "--ranks", "1-4", "--json")
    report = json.loads(text)
    assert code == 0 and report["failures"] == []
    assert {(one["collective"], one["name"]) for one in report["algorithms"]} == set(ALGORITHMS)
    by_name = {(one["collective"], one["name"]): one for one in report["algorithms"]}
    ring, direct = by_name["all_reduce", "ring"], by_name["all_reduce", "direct"]
    assert ring["ranks"] == [1, 2, 3, 4] and ring["labels"] == ["same_on_all_ranks"]
    assert {"rank_order", "same_on_all_ranks", "size_invariant"} <= set(direct["labels"])
    for collective in ("broadcast", "gather", "scatter_v"):
        assert by_name[collective, "direct"]["num_schedules"] == 1 + 2 + 3 + 4, "every root"


def test_one_name_means_all_its_collectives(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = verify(capsys, "ring", "--ranks", "2,5")
    assert code == 0
    assert "5 of 5 algorithms hold: 10 schedules proved" in text
    code, text = verify(capsys, "ring", "--collective", "all_reduce", "--ranks", "2,5")
    assert "1 of 1 algorithms hold: 2 schedules proved" in text


def test_an_algorithm_without_a_schedule_is_not_said_to_hold(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = verify(capsys, "--collective", "all_gather", "--ranks", "3")
    assert code == 0
    in_all = sum(collective == "all_gather" for collective, _ in ALGORITHMS)
    [(held, asked, others)] = re.findall(r"(\d+) of (\d+) algorithms hold: .*; (\d+) others", text.replace("\n", " "))
    assert held == asked
    assert int(asked) + int(others) == in_all
    assert "hypercube" not in text, "it takes powers of two"


def test_brackets_in_a_name_are_printed_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = verify(capsys, write(tmp_path, name="mine[/fast]"), "--ranks", "2")
    assert code == 0
    assert "mine[/fast]" in text


def test_processes_share_the_work(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hocket.answers.proofs._MIN_POOL_WORK", 0)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    code, text = verify(capsys, "dissemination", "--ranks", "1-5", "--json")
    assert code == 0
    assert json.loads(text)["algorithms"][0]["ranks"] == [1, 2, 3, 4, 5]


def test_a_process_that_is_killed_is_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hocket.answers.proofs._MIN_POOL_WORK", 0)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    file = write(tmp_path)
    with Path(file).open("a") as more:
        more.write("import multiprocessing, os\nif multiprocessing.parent_process():\n    os.kill(os.getpid(), 9)\n")
    code, text = verify(capsys, file, "--ranks", "1-4")
    assert code == 1 and f"all_gather mine, 2 ranks: {file}:6: not proved, because a process that proves was" in text
    assert "    it fails for 4 ranks, too\n0 of 1 algorithms hold" in text


@pytest.mark.parametrize("way", ["file", "standard input"])
def test_a_program_without_a_main_guard_may_prove(way: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import hocket.answers.proofs as proofs\nimport os\nproofs._MIN_POOL_WORK = 0\n"
        "os.sched_getaffinity = lambda _: {0, 1}\nprint('once', bool(proofs.verify('dissemination', '1-4')))\n"
    )
    words, given = ([str(program)], None) if way == "file" else (["-"], program.read_text())
    done = subprocess.run([sys.executable, *words], input=given, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "once True\n"


def test_a_file_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = verify(capsys, write(tmp_path), "--ranks", "1-5", "--json")
    assert code == 0
    (mine,) = json.loads(text)["algorithms"]
    assert (mine["name"], mine["collective"], mine["ranks"]) == ("mine", "all_gather", [2, 4])
    assert mine["source"].startswith(str(tmp_path))


@pytest.mark.parametrize("cores", [{0}, {0, 1}])
def test_a_file_that_only_imports_what_lies_beside_it(
    cores: set[int], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hocket.answers.proofs._MIN_POOL_WORK", 0)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: cores)
    write(tmp_path)
    file = tmp_path / "imports.py"
    file.write_text("import own")
    code, text = verify(capsys, str(file), "--ranks", "1-6", "--json")
    (mine,) = json.loads(text)["algorithms"]
    assert code == 0 and mine["ranks"] == [2, 4, 6] and mine["source"] == f"{tmp_path}/own.py:6"


@pytest.mark.parametrize(
    ("flaws", "law"), [({"flaw": " and peer != 1"}, 2), ({"steps": "2"}, 5), ({"shift": " + p"}, None)]
)
def test_a_broken_one_is_named(
    flaws: dict[str, str], law: int | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path, **flaws)
    code, text = verify(capsys, file, "--ranks", "4", "--json")
    report = json.loads(text)
    assert code == 1 and report["algorithms"] == []
    (failure,) = report["failures"]
    assert (failure["name"], failure["collective"], failure["num_ranks"]) == ("mine", "all_gather", 4)
    assert law is None or failure["law"] == law
    assert failure["source"] == f"{file}:6" and str(failure["expected"] or "") in failure["message"]
    assert (failure["found"] is None) == (law is None)
    code, text = verify(capsys, f"{file}:mine", "--ranks", "4")
    assert code == 1
    assert text.startswith(f"all_gather mine, 4 ranks: {file}:{6 if law else 13}: ")
    assert "0 of 1 algorithms hold" in text


def test_a_mistake_in_the_program_is_a_failure_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path, shift=" // (p - 4)")
    code, text = verify(capsys, file, "--ranks", "4", "--json")
    (failure,) = json.loads(text)["failures"]
    assert code == 1 and failure["law"] is None
    assert failure["message"].startswith(f"{file}:13 (mine, 4 ranks): ZeroDivisionError: ")
    code, text = verify(capsys, file, "--ranks", "4")
    assert code == 1 and f"all_gather mine, 4 ranks: {file}:13 (mine, 4 ranks): ZeroDivisionError: " in text


def test_what_memory_cannot_hold_is_a_failure_of_that_algorithm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hocket.schedule.capacity._available", lambda: 1 << 30)
    file = write(tmp_path)
    with Path(file).open("a") as more:
        more.write(HUGE)
    code, text = verify(capsys, file, "--ranks", "8", "--json")
    report = json.loads(text)
    assert code == 1 and [one["name"] for one in report["algorithms"]] == ["mine"]
    failures = {failure["name"]: failure for failure in report["failures"]}
    assert set(failures) == {"fine", "finer", "far"} and all(failure["law"] is None for failure in failures.values())
    assert failures["fine"]["message"].startswith(f"{file}:15: following 8 ranks of all_gather in 1073741824 chunks ")
    finer = f"{file}:16 (finer, 8 ranks): all_gather of 8 ranks: expected fewer than 2**31 chunks, found 8796093022208;"
    assert failures["finer"]["message"].startswith(finer)
    assert failures["far"]["message"].startswith(f"{file}:18: following 2147483647 slots of scratch of 8 ranks would ")


@pytest.mark.parametrize("error", [ResourceError("too much", errno=12, call="allocate"), MemoryError()])
def test_memory_that_ends_is_told_with_the_source(
    error: Exception, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("hocket.schedule.proof.verify.contents", fail)
    code, text = verify(capsys, file := write(tmp_path), "--ranks", "4")
    assert code == 1 and f"{file}:6: {str(error) or 'MemoryError'}" in text


@pytest.mark.parametrize("command", ["verify", "show"])
@pytest.mark.parametrize(("content", "line"), [("x = 1\n1 // 0\n", 2), ("def f()\n", 1)])
def test_a_file_that_cannot_be_run_is_one_line(
    command: str, content: str, line: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "own.py"
    file.write_text(content)
    assert main([command, str(file)]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith(f"hocket {command}: {file}:{line}: ")
    assert printed.err.count("\n") == 1
    assert main([command, str(file), "--json"]) == 2
    report = json.loads(capsys.readouterr().out)
    message = report["error"] if command == "show" else report["failures"][0]["message"]
    assert message.startswith(f"{file}:{line}: ")


@pytest.mark.parametrize("root", [0, 1])
def test_a_wrong_result_says_which_command_draws_where_it_is(
    root: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "import hocket\n\n"
        '@hocket.algorithm("broadcast", "reduce", name="lost", chunks="1")\n'
        "def lost(schedule):\n"
        f"    if schedule.root != {root}:\n        hocket.algorithms(schedule.collective)['binomial'](schedule)\n"
    )
    assert main(["verify", str(file), "--ranks", "2"]) == 1
    said = capsys.readouterr().out
    for collective in ("broadcast", "reduce"):
        command = f"hocket show {file}:lost -n 2{' --root 1' if root else ''} --collective {collective}"
        assert f"; `{command}` draws where" in said
    assert main([*command.split()[1:]]) == 1, "that command draws it"
    assert "law 2" in capsys.readouterr().out


def test_the_steps_of_a_broken_one_can_be_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", write(tmp_path, flaw=" and peer != 1"), "-n", "4"]) == 1
    text = capsys.readouterr().out
    assert "c3 = r3" in text and f"{tmp_path}/own.py:6: law 2" in text and "draws where" not in text
    assert "laws 1, 2, 4, 5 hold" not in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--all", "ring"], "exclude each other"),
        (["rnig"], "xpected an algorithm, one of"),
        (["ring", "--collective", "scatter_brain"], "scatter_brain"),
        (["missing.py"], "missing.py"),
        (["ring", "--ranks", "1000000"], "ranks: expected at most 65536 for a proof, because "),
    ],
)
def test_bad_requests(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_no_rank_count_allowed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", write(tmp_path), "--ranks", "3"]) == 2
    assert "ranks, found 3" in capsys.readouterr().err
    assert main(["verify", "swing", "--ranks", "3,5"]) == 2
    assert "found 3; nonuniform_hierarchical_ring takes any number" in capsys.readouterr().err


def test_piped_output_has_no_progress(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "hocket", "verify", "ring", "--ranks", "1-3", "--json"]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert len(json.loads(done.stdout)["algorithms"]) == 5
