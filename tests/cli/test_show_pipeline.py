"""hocket show pipeline and hocket verify --pipeline: the picture, the numbers, files, and what is refused."""

import json
from pathlib import Path
from xml.etree.ElementTree import fromstring

import pytest

from hocket.cli import main
from hocket.training.pipeline import build_table, write_torch_csv
from tests.cli.printed import error_of, json_of, text_of

MINE = '''
from hocket.training.pipeline import backward, forward, full


def eager(rank, p, m, v):
    """1F1B that sends everything at once."""
    return [forward(rank, m).take(), full(backward(rank, m).take())]


def hasty(rank, p, m, v):
    return eager(rank, p, m, v)[:: -1 if rank == 1 else 1]


def broken(rank, p, m, v):
    return 1 // 0
'''


@pytest.fixture
def mine(tmp_path: Path) -> str:
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    return str(file)


def test_the_picture_has_every_operation_at_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    lines = text_of(capsys, "show", "pipeline", "1f1b", "-p", "2", "-m", "3").splitlines()
    assert lines[0] == "1f1b: 2 ranks, 2 stages, 3 micro-batches; F=1, B=1, W=1, message=0"
    assert lines[2] == "rank 0  F0 F1       G0--- F2 G1---    G2---"
    assert lines[3] == "rank 1     F0 G0--- F1 G1--- F2 G2---"
    assert "makespan 12, cost 12, bubble rate 25.0%" in lines


def test_labels_have_a_stage_if_ranks_have_several_and_pairs_are_joined(capsys: pytest.CaptureFixture[str]) -> None:
    text = text_of(capsys, "show", "pipeline", "dualpipev", "-p", "4", "-m", "8")
    assert " 0F7+7G3-" in text and "tagged 2, FIFO impossible" in text
    facts = json_of(capsys, "show", "pipeline", "dualpipev", "-p", "4", "-m", "8")
    assert facts["fewest_messages"] == {"tagged": 2, "fifo": None}


def test_json_has_the_numbers_in_the_given_times(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["show", "pipeline", "gpipe", "-p", "3", "-m", "4", "--times", "F=2,B=3,W=1,message=0.5"]
    facts = json_of(capsys, *words)
    assert facts["makespan"] == 4 * 6 + 2 * 6 + 4 * 0.5  # two messages on the way there, and two back
    assert facts["idle"] == [facts["makespan"] - 24] * 3 and facts["bubble_rate"] == pytest.approx(
        1 - 24 / facts["makespan"]
    )
    assert facts["peak_activations"] == [4, 4, 4] and facts["fewest_messages"] == {"tagged": 0, "fifo": 0}


def test_a_narrow_terminal_continues_the_picture_below(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("FORCE_COLOR", "1")
    text = text_of(capsys, "show", "pipeline", "zb-h1")
    assert text.count("rank 3") == 2 and "\x1b[" in text


def test_zero_times_and_long_messages_stay_small(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["show", "pipeline", "1f1b", "-p", "2", "-m", "2", "--times", "F=0,B=0,W=0,message=1e9"]
    assert len(text_of(capsys, *words)) < 100_000
    assert len(text_of(capsys, *words, "--svg", "-")) < 200_000


def test_svg_is_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "picture.svg"
    assert main(["show", "pipeline", "zbv", "-p", "2", "-m", "3", "--svg", str(file)]) == 0
    titles = [one.text or "" for one in fromstring(file.read_text()).iter("{http://www.w3.org/2000/svg}title")]
    assert sum(" of stage " in title for title in titles) == 3 * 4 * 3
    assert capsys.readouterr().out == ""


def test_a_table_too_large_for_a_picture_has_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["show", "pipeline", "1f1b", "-p", "65", "-m", "2"]
    text = text_of(capsys, *words)
    assert "The picture is not shown" in text and "peak activations 1 to 2" in text
    assert "--svg: expected a table whose picture is readable" in error_of(capsys, *words, "--svg", "-")


def test_without_a_name_the_schedules_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert "zb-h2\n" in text_of(capsys, "show", "pipeline")
    assert {"gpipe", "dualpipev"} <= set(json_of(capsys, "show", "pipeline")["schedules"])


def test_verify_says_what_holds_and_why_messages_are_needed(capsys: pytest.CaptureFixture[str]) -> None:
    text = text_of(capsys, "verify", "--pipeline", "1f1b", "-p", "4", "-m", "8")
    assert "law 3 channels  each channel must hold 1 tagged message; without tags: 1\n" in text
    assert "makespan 33, cost 33 if F, B and W take 1; as the schedule promises\n" in text
    assert "channels that hold 0 messages, deadlock of 2 ranks: rank 0 waits to send" in text


def test_a_file_of_pytorch_is_proved(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "theirs.csv"
    write_torch_csv(build_table("zb-h1", 3, 4), file)
    assert "theirs: 3 ranks, 3 stages, 4 micro-batches; 36 operations\n" in text_of(
        capsys, "verify", "--pipeline", str(file), "-p", "3"
    )
    assert "expected ranks=3" in error_of(capsys, "verify", "--pipeline", str(file), "-p", "4")
    swapped = file.read_text().replace("2I0", "2I9").replace("2I1", "2I0").replace("2I9", "2I1")
    file.write_text(swapped)
    assert main(["verify", "--pipeline", str(file)]) == 1
    assert "law 2" in capsys.readouterr().out
    file.write_text("0F0,0B999999999")
    assert main(["show", "pipeline", str(file)]) == 1
    assert "0F0" not in (text := capsys.readouterr().out) and "G999999999" in text and "law 1" in text
    file.write_bytes(b"\xff\0")
    assert "expected a CSV file of PyTorch" in error_of(capsys, "verify", "--pipeline", str(file))


def test_a_broken_law_of_a_function_ends_with_code_1(capsys: pytest.CaptureFixture[str], mine: str) -> None:
    assert text_of(capsys, "verify", "--pipeline", f"{mine}:eager", "-p", "3", "-m", "2").count("law ") == 5
    for command in (["verify", "--pipeline", f"{mine}:hasty"], ["show", "pipeline", f"{mine}:hasty"]):
        assert main([*command, "-p", "3", "-m", "2"]) == 1
        assert "deadlock of 1 operation: rank 1 runs G of stage 1" in capsys.readouterr().out
    assert main(["verify", "--pipeline", f"{mine}:hasty", "--json"]) == 1
    facts = json.loads(capsys.readouterr().out)
    assert (
        facts["law"] == 2 and facts["makespan"] is None and facts["fewest_messages"] == {"tagged": None, "fifo": None}
    )


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("show pipeline zb-h3", "did you mean 'zb-h2'?"),
        ("show pipeline none.csv", "found no file 'none.csv'"),
        ("show pipeline MINE:egaer", "did you mean 'eager'?"),
        ("show pipeline MINE", "one of eager, hasty, broken"),
        ("verify --pipeline MINE:broken", "ZeroDivisionError"),
        ("show pipeline 1f1b -p 0", "expected ranks of 1 or more, found 0"),
        ("show pipeline 1f1b -p 9999 -m 9999", "expected at most 8,388,608 forwards"),
        ("show pipeline zbv --chunks 3", "expected chunks=2"),
        ("show pipeline 1f1b --times F=1,V=2", "expected times of F, B, W, message; found 'V'"),
        ("show pipeline 1f1b --times F", "'F' is not a name with a time"),
        ("show pipeline 1f1b --times F=nan", "for F; found nan"),
        ("show ring -m 3", "--microbatches belongs to `hocket show pipeline`"),
        ("verify --pipeline 1f1b --all", "--pipeline and --all exclude each other"),
        ("verify --pipeline 1f1b -p 2-4", "expected one rank count"),
        ("verify ring --chunks 2", "--chunks belongs to --pipeline"),
    ],
)
def test_what_makes_no_sense_is_refused(
    command: str, words: str, mine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in error_of(capsys, *command.replace("MINE", mine).split())
