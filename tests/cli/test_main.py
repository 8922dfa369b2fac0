import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hocket.cli import main
from hocket.cli.argument_types import job_count, rank_counts
from hocket.errors import InternalError, ScheduleError
from hocket.view import name_counts
from tests.cli.printed import error_of


def test_help_names_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert all(f"\n    {command} " in text for command in ("demo", "run", "show", "verify", "doctor"))


@pytest.mark.parametrize("command", ["demo", "run", "show", "verify", "doctor"])
def test_each_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert f"hocket {command}" in capsys.readouterr().out


def test_without_a_command_there_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "hocket demo" in capsys.readouterr().out


def test_an_unknown_command_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert "frobnicate" in error_of(capsys, "frobnicate")


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("explain all_reduce -n 4 -b 64Q", "hocket explain: error: argument -b/--bytes: expected a size in bytes"),
        ("explain", "hocket explain: error: the following arguments are required: COLLECTIVE"),
        ("bench --ranks x", "hocket bench: error: argument -g/--ngpus/--ranks: expected a whole number"),
        ("trace frobnicate x", "hocket trace: error: argument ACTION: invalid choice"),
        ("run", "hocket run: error: the following arguments are required"),
        ("frobnicate", "hocket: error: argument COMMAND: invalid choice"),
    ],
)
def test_a_wrong_argument_is_one_line_and_where_to_read_more(
    command: str, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = error_of(capsys, *command.split()).splitlines()
    assert first.startswith(error) and second == f"see {error.partition(':')[0]} --help"


@pytest.mark.parametrize("columns", ["80", "200"])
@pytest.mark.parametrize("value", ["--link [LINKS:]bandwidth=,latency=", "--topology KIND:ARGS", "-b B,..."])
def test_the_error_of_an_option_without_its_value_shows_the_value(
    value: str, columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    error = error_of(capsys, "simulate", "all_reduce", value.partition(" ")[0])
    assert f": expected one argument: {value}\n" in error


@pytest.mark.parametrize(
    ("command", "owners"),
    [
        (
            "show topology ring:4 --link nic:latency=1us",
            "--link belongs to hocket simulate, hocket optimum, hocket explain",
        ),
        ("explain all_reduce --sweep", "--sweep belongs to hocket simulate"),
    ],
)
def test_an_option_of_other_commands_is_told_to_be_theirs(
    command: str, owners: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"; {owners}\n" in error_of(capsys, *command.split())


@pytest.mark.parametrize(
    ("command", "near"),
    [
        ("sho", "show"),
        ("--versoin", "--version"),
        ("bench --rnaks 4 all_reduce", "--ranks"),
        ("bench all_reduce --order=rnak", "rank"),
        ("bench alreduce", "all_reduce"),
        ("bench all_reduce -o summ", "sum"),
        ("bench all_reduce -d flaot32", "float32"),
        ("show rign", "ring"),
        ("show ring --collective alreduce", "all_reduce"),
        ("tune --collective alreduce", "all_reduce"),
        ("show topology --topology toruss:4", "torus"),
        ("simulate all_reduce --topology torus:4 --link nci:latency=1us", "nic"),
    ],
)
def test_the_error_says_which_name_is_near(command: str, near: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"; did you mean '{near}'?" in error_of(capsys, *command.split())


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("simulate all_reduce --topology ring:4 --overhead -1us", "overhead: expected a time of 0 or more"),
        ("simulate all_reduce --topology ring:4 --reduce -1GB/s", "reduce: expected a bandwidth above 0"),
        ("simulate all_reduce --sweep --topology ring:N", "'ring:N': N stands for the rank count; give it as -n"),
        ("explain all_reduce -b 1K --topology dgx-h100:1@ring:N", "N stands for the rank count; give it as -n"),
        ("show topology ring:N", "N stands for the rank count; give it as -n (ranks=), or write a number"),
        ("simulate all_reduce --topology torus:NxN -n 4", "N stands for the number of all ranks, as in ring:N"),
        ("verify hierarchical --groups 99999999", "expected at most 1048576 ranks in all; found '99999999'"),
        ("verify torus --dims 99999x99999", "expected at most 1048576 ranks in all; found '99999x99999'"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_at_once(
    command: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in error_of(capsys, *command.split())


@pytest.mark.parametrize("command", ["simulate", "explain"])
def test_what_a_shell_would_redirect_is_quoted_in_the_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    arrows = re.findall(r"\S*<?->\S+", capsys.readouterr().out)
    assert arrows and all(one.startswith("'") and one.endswith("'") for one in arrows)


@pytest.mark.parametrize(("text", "jobs"), [("1", 1), ("16", 16), ("-1", -1)])
def test_numbers_of_jobs(text: str, jobs: int) -> None:
    assert job_count(text) == jobs


@pytest.mark.parametrize("text", ["0", "-5", "-1us", "two", "9" * 20])
def test_bad_numbers_of_jobs(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected 1 or more, or -1 for one per core"):
        job_count(text)


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("hocket 0.")


def test_the_module_can_be_run() -> None:
    done = subprocess.run([sys.executable, "-m", "hocket", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("hocket 0.")


@pytest.mark.parametrize("module", ["hocket.cli", "hocket.cli.run", "hocket.runtime.launch.supervisor"])
def test_importing_is_cheap(module: str) -> None:
    heavy = {"numpy", "rich", "msgspec", "multiprocessing", "hocket.schedule", "hocket.algorithms"}
    program = f"import sys, {module}; print(*{heavy!r} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize(
    "error", [ScheduleError("what is wrong"), OSError("what is wrong"), ValueError("what is wrong")]
)
def test_an_expected_error_is_one_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> int:
        raise error

    monkeypatch.setattr("hocket.cli.doctor.run", fail)
    assert main(["doctor"]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "hocket doctor: what is wrong\n")
    assert main(["doctor", "--json"]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ('{"error": "what is wrong"}\n', "hocket doctor: what is wrong\n")


@pytest.mark.parametrize(
    "command", [["show", "ring"], ["show", "ring", "--json"], ["show", "ring", "--svg", "-"], ["--version"]]
)
def test_a_full_disk_under_standard_output_is_one_line(command: list[str]) -> None:
    program = [sys.executable, "-m", "hocket", *command]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(program, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    expected = "expected a writable standard output, found: [Errno 28] No space left on device"
    assert (done.returncode, done.stderr) == (2, f"hocket {command[0]}: {expected}\n")


TALKING = """
import hocket

print("loading")

@hocket.algorithm("broadcast", name="talking", chunks=lambda p: print("chunks") or 1)
def talking(schedule):
    print("writing", schedule.num_ranks, end="!\\n")
    with schedule.step():
        schedule.copy(src=schedule.root, dst=schedule.ranks[schedule.ranks != schedule.root], chunk=0)
"""


@pytest.mark.parametrize(
    "command",
    [
        ["show", "FILE"],
        ["verify", "FILE", "--ranks", "2"],
        ["verify", "FILE", "--ranks", "14-16"],  # in processes, if there are cores
        ["simulate", "broadcast", "--algorithm", "FILE", "--topology", "ring:4"],
        ["simulate", "broadcast", "--algorithm", "FILE", "--topology", "ring:4", "--sweep", "--jobs", "2"],
        ["bench", "broadcast", "--algorithm", "FILE", "-g", "2", "-b", "64", "-e", "64", "-n", "1"],
    ],
    ids=lambda command: " ".join(word for word in command if not word[0].isdecimal()),
)
def test_what_the_users_file_prints_is_no_part_of_a_report(command: list[str], tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(TALKING)
    program = [sys.executable, "-m", "hocket", *(str(file) if word == "FILE" else word for word in command), "--json"]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    assert isinstance(json.loads(done.stdout), dict)
    assert all(text in done.stderr for text in ("loading\n", "chunks\n")) and re.search(r"writing \d+!\n", done.stderr)


def test_an_error_of_our_own_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> int:
        raise InternalError("our fault")

    monkeypatch.setattr("hocket.cli.doctor.run", fail)
    with pytest.raises(InternalError):
        main(["doctor"])


@pytest.mark.parametrize(
    ("text", "counts"), [("4", [4]), ("1-3", [1, 2, 3]), ("8, 2-3,3", [2, 3, 8]), ("1-1", [1]), ("5-6,1", [1, 5, 6])]
)
def test_rank_counts(text: str, counts: list[int]) -> None:
    assert rank_counts(text) == counts
    assert rank_counts(name_counts(counts)) == counts


def test_many_rank_counts_are_named_in_short() -> None:
    assert name_counts(list(range(2, 65, 2))) == "2, 4, ..., 64"
    assert name_counts([1, 2, 3, 5, 8, 11, 14, 17, 19]) == "1-3, 5, 8, ..., 17, 19"
    assert name_counts([2, 4, 6, 8]) == "2, 4, 6, 8"


@pytest.mark.parametrize("text", ["", "0", "3-1", "a", "1-", "-1", "1.5", "1-2-3"])
def test_bad_rank_counts(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["verify", "ring", f"--ranks={text}"])
    assert "expected for example 4, 1-16" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        ["show", "ring", "-n", "2", "--collective", "allReduce"],
        ["show", "choice", "-n", "2", "--collective", "allReduce"],
        ["verify", "--ranks", "2", "--collective", "allReduce"],
        ["simulate", "allReduce", "-b", "64K", "--topology", "ring:2", "--algorithm", "ring"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_every_command_knows_a_collective_by_other_spellings(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command) == 0
    assert "all_reduce" in capsys.readouterr().out
