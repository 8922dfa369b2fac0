"""benchmarks/lab/other_calls.py measures all its calls, and leaves out a peer that is not available."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import peers
from lab import other_calls


def test_every_call_is_measured_at_every_size() -> None:
    found = other_calls.start("hocket", 2, [64, 4096])
    names = dict.fromkeys(name for name, _ in found)
    assert len(names) == 8 and list(found) == [(name, size) for size in (64, 4096) for name in names]
    assert all(0 < microseconds < 1e6 for microseconds in found.values())


def test_who_fails_or_does_not_answer_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(peers.Absent, match="it failed: ValueError: sendrecv: expected dst from 0 to 2, found 3"):
        other_calls.start("hocket", 3, [64])
    monkeypatch.setattr(other_calls, "SECONDS", 0.2)
    with pytest.raises(peers.Absent, match=r"no answer within 0\.2 s"):
        other_calls.start("hocket", 2, [64 << 20])


def test_what_is_absent_or_fails_is_said_and_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times = {"hocket": 2.0, "impi": 3.0}

    def start(library: str, ranks: int, sizes: list[int]) -> dict[tuple[str, int], float]:
        if library == "mpich":
            raise peers.Absent("no route")
        assert (ranks, sizes) == (4, [8])
        return {("exchange", 8): times[library]}

    monkeypatch.setattr(other_calls, "start", start)
    monkeypatch.setattr(sys, "argv", ["other_calls.py", "--ranks=4", "--sizes=8", "--rounds=2", "--peers=mpich,impi"])
    other_calls.main()
    out, err = capsys.readouterr()
    assert err == "mpich is absent: no route\n"
    head, line = out.splitlines()
    assert head.split()[-3:] == ["bytes", "hocket", "impi"]
    assert line.split() == ["exchange", "8", "2.00", "3.00", "1.50"]


@pytest.mark.parametrize(("option", "words"), [("--ranks=3", "an even number"), ("--peers=gloo", "expected one of")])
def test_what_is_wrong_is_said(
    option: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["other_calls.py", option])
    with pytest.raises(SystemExit):
        other_calls.main()
    assert words in capsys.readouterr().err
