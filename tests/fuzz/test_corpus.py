"""The corpus of fuzzing is handled as it should be: valid messages, and inputs that have found something."""

import subprocess
from pathlib import Path
from random import Random

import pytest

from hocket.runtime.network import handshake
from hocket.runtime.rendezvous import protocol
from tests.fuzz import boards, handshakes, inputs, rendezvous
from tests.fuzz.campaign import fuzz, report
from tests.fuzz.targets import ROOT, TARGETS, Target, build

IN_PYTHON = [target for target in TARGETS.values() if target.handle is not None]
IN_CORE = [target for target in TARGETS.values() if target.handle is None]


@pytest.mark.parametrize("target", IN_PYTHON, ids=lambda target: target.name)
def test_the_corpus_and_some_more_inputs_are_handled(target: Target) -> None:
    corpus, choose = inputs.read(target.name), Random(1)
    assert target.handle is not None and corpus
    for data in corpus:
        target.handle(data)
    for _ in range(2000):
        target.handle(target.draw(choose) if target.draw is not None else inputs.mutate(corpus, choose))


@pytest.mark.slow("compiles the parsers of the core with sanitizers")
@pytest.mark.timeout(600)  # where others use the cores, too
def test_the_core_handles_the_corpus_and_some_more_inputs() -> None:
    build()
    for target in IN_CORE:
        assert inputs.read(target.name)
        ended = subprocess.run(target.command(2000, 1), cwd=ROOT, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_corpus_has_messages_that_are_taken() -> None:
    """Else a change of a protocol would leave nothing of it but strangers."""
    answers = [data[1:] for data in inputs.read("handshake") if data[:1] == b"\0"]
    job, rank, challenge = handshakes.JOB, handshakes.RANK, handshakes.CHALLENGE
    assert [handshake.admit(job, rank, challenge, answer) is not None for answer in answers].count(True) == 1
    kinds = {type(protocol.decode(data)) for data in inputs.read("rendezvous")}
    assert kinds == {type(message) for message in rendezvous.VALID} | {type(None)}
    found = {boards.kind_of(data) for data in inputs.read("boards") if boards.place_in(data) is not None}
    assert found == set(range(boards.NUM_KINDS))


def test_no_forged_handshake_is_let_in() -> None:
    choose = Random(2)
    for _ in range(20_000):
        handshakes.handle_forgery(handshakes.draw_forgery(choose))


def test_a_finding_is_told_with_its_input_and_seed_and_added_to_the_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(inputs, "FOLDER", tmp_path)
    monkeypatch.setattr("tests.fuzz.campaign.ROOT", tmp_path)
    report(TARGETS["frames"], "this does not hold\nafter 7 runs\ninput 0bad", 100, 5, 1)
    told = capsys.readouterr().out
    assert "finding 0bad (seed 5)" in told and 'make fuzz ARGS="--targets frames --runs 1"' in told
    assert inputs.read("frames") == [b"\x0b\xad"]


def test_a_campaign_runs_in_processes_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz(TARGETS["rendezvous"], 200, 3)
    assert "no finding" in capsys.readouterr().out
