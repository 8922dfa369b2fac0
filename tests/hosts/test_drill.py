"""The drill: what it prints and returns, and in a long test what it finds with few trials of everything."""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from hocket.errors import PeerDied
from tests.hosts import drill, meetings
from tests.hosts.lab import Lab
from tests.hosts.pretended import LIMIT_SECONDS, Outcome
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(10 * LIMIT_SECONDS)
LISTENER = "import socket, sys; one = socket.create_server(('', 5000)); sys.stdin.read()"


def said(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    _, *lines = map(json.loads, capsys.readouterr().out.splitlines())
    return {line["drill"]: line for line in lines}


def test_the_drill_tells_what_it_measured_beside_its_goals(capsys: pytest.CaptureFixture[str]) -> None:
    assert drill.main(["--meet", "6", "--handshakes", "200", "--kills", "2"]) == 0
    found = said(capsys)
    assert list(found) == ["meet", "handshakes", "kills"]
    assert found["meet"]["ranks"] == 6 and found["handshakes"]["handshakes"] == 200
    assert 0 < found["meet"]["meeting_seconds"] <= found["meet"]["init_seconds"]
    assert found["kills"]["trials"] == 2 and found["kills"]["survivors"] == 6
    for name, one in found.items():
        assert len(one["goals"]) == 1 + len(drill.GOALS[name]) and one["goals"]["wrong: none"] == "reached"


def test_only_what_is_wrong_is_a_failure_and_not_a_missed_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(drill.GOALS, "handshakes", {"seconds": 0.0})
    assert drill.main(["--handshakes", "3"]) == 0
    assert said(capsys)["handshakes"]["goals"] == {"wrong: none": "reached", "seconds <= 0": "missed"}
    monkeypatch.setattr(meetings, "LIMIT_SECONDS", 0.0)
    assert drill.main(["--handshakes", "3"]) == 1
    assert said(capsys)["handshakes"]["wrong"] == ["3 were not let in"]


def test_what_is_left_on_a_host_is_seen(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(2)
    assert drill.left_on(lab.hosts) == []
    process = lab.hosts[1].popen([sys.executable, "-c", LISTENER], stdin=subprocess.PIPE)
    wait_until(lambda: any("LISTEN" in one for one in drill.left_on(lab.hosts)))
    left = drill.left_on(lab.hosts)
    assert left[0] == f"process {process.pid} on host1" and left[1].startswith("on host1: LISTEN"), left


def test_each_side_of_a_cut_has_to_name_a_rank_of_the_other() -> None:
    trial = drill.Trial("cuts", "barrier", 8, [4, 5], 0.0, layout=drill.LAYOUT_OF_CUTS)

    def judged(named: list[int], where: str = " on host a") -> drill.Result:
        result = drill.Result()
        outcomes = [Outcome((PeerDied(f"rank {one}{where}", rank=one), 12.5, None)) for one in named]
        drill.judge(trial, outcomes, 10.0, result)
        return result

    right = judged([4, 4, 5, 4, 0, 2])
    assert right.wrong == [] and right.seconds == [2.5] * 6
    assert [one["rank"] for one in judged([4, 4, 0, 4, 5, 2]).wrong] == [2, 4]
    assert len(judged([4, 4, 5, 4, 0, 2], where="").wrong) == 6, "a host has to be named, too"


@pytest.mark.long("few trials of each drill: more than a minute")
def test_the_drills_find_nothing_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    trials = {"kills": 8, "deaths": 8, "resets": 14, "links": 2, "stops": 6, "cuts": 3}
    others = {"meet": 64, "handshakes": 1000, "strangers": 2000}
    words = [word for name, number in (trials | others).items() for word in (f"--{name}", str(number))]
    status = drill.main([*words, "--seed", "7"])
    found = said(capsys)
    assert status == 0 and found.keys() == (trials | others).keys(), found
