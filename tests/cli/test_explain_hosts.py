"""`hocket explain --hosts`: what algorithms carry between hosts."""

from pathlib import Path

import pytest

from hocket.runtime.ranks import cores
from tests.cli.printed import error_of, json_of, text_of


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses no tuner file and no settings of the environment, and four cores."""
    for name in ("HOCKET_ALGO", "HOCKET_TUNER_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cores, "own_cores", lambda: {"cores": b"\x0f", "quota": None})
    monkeypatch.chdir(tmp_path)


def test_several_hosts_are_explained_by_what_goes_between_them(capsys: pytest.CaptureFixture[str]) -> None:
    call = ("explain", "all_reduce", "-b", "64M", "--hosts")
    found = json_of(capsys, *call, "2", "-n", "4")
    assert (found["algorithm"], found["by"], found["hosts"]) == ("hierarchical_direct", "table", [2, 2])
    across = {name: row["across"] for row in found["candidates"] for name in (row["algorithm"], *row["twins"])}
    assert across["hierarchical_direct"] == 64 << 20 == found["candidates"][0]["across"]
    assert across["ring"] == 96 << 20 and across["direct_two_shot"] == 128 << 20
    text = text_of(capsys, *call, "2", "-n", "4")
    assert text.startswith(
        "all_reduce, 4 ranks on 2 hosts of 2, 64 MiB: hierarchical_direct runs, chosen by the table."
    )
    assert "hierarchical_direct: 64 MiB leave or enter a host, in 4 messages and 2 steps across." in text
    assert "direct_two_shot runs where all ranks are on one host: 128 MiB leave" in text
    assert "ring: 96 MiB leave or enter a host, in 6 messages and 6 steps across, 1.50 times as many bytes." in text
    uneven = text_of(capsys, "explain", "all_reduce", "-b", "8", "--hosts", "3,1")
    assert "4 ranks on hosts of 3, 1, 8 B: hierarchical_leaders runs" in uneven
    assert "8 B leave or enter a host, in 1 message and 1 step across." in uneven


def test_own_algorithms_and_settings_count_on_several_hosts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("own.py").write_text(
        "import hocket\n"
        "@hocket.algorithm('all_reduce', chunks='1')\n"
        "def mine(schedule):\n"
        "    hocket.algorithms('all_reduce')['tree'](schedule)\n"
    )
    monkeypatch.setenv("HOCKET_ALGO", "all_reduce:ring")
    text = text_of(capsys, "explain", "all_reduce", "-n", "4", "--hosts", "2", "--algorithm", "own.py:mine")
    assert "ring runs, chosen by HOCKET_ALGO; the table says hierarchical_direct." in text
    assert "own.py:mine: 64 MiB leave or enter a host, in 1 message and 2 steps across, 0.67 times" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--hosts 2", "hosts: expected ranks (--ranks), which 2 hosts have together; found none"),
        ("--hosts 2 -n 4 --measure", "found also measure (--measure); leave one out"),
        ("--hosts 2 -n 4 --topology ring:4", "found also a topology (--topology), which has hosts of its own"),
        ("--hosts 2 -n 4 --ways", "--ways tells how data travels on this host and excludes --hosts"),
        ("--hosts 2,x -n 4", "expected a number of hosts, or the ranks on each, for example 2 or 3,1; found '2,x'"),
    ],
)
def test_hosts_that_make_no_sense_are_refused(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said in error_of(capsys, "explain", "all_reduce", *words.split())
