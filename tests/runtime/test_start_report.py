"""HOCKET_DEBUG=INIT: each rank tells what it was started with, in one write."""

import hmac
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hocket.runtime import debugging, discover
from hocket.runtime.ranks.program_frames import debugging_start
from hocket.runtime.ranks.start_report import describe_start

KEY = "5e" * 32
FINGERPRINT = hmac.new(bytes.fromhex(KEY), b"hocket fingerprint", "sha256").hexdigest()[:8]
HOCKET = {"HOCKET_RANK": "3", "HOCKET_SIZE": "64", "HOCKET_ADDRESS": "hxa:29500"}
SPREAD = HOCKET | {"HOCKET_LOCAL_RANK": "1", "HOCKET_LOCAL_SIZE": "8"}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1", "PMI_FD": "7"}


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({}, ["rank 0 of 1 (alone)", "local rank 0 of 1 (alone)", "all ranks on this host, at the name hocket-"]),
        (
            SPREAD | {"HOCKET_KEY": KEY},
            [
                "rank 3 of 64 (HOCKET_RANK, HOCKET_SIZE)",
                "local rank 1 of 8 (HOCKET_LOCAL_RANK, HOCKET_LOCAL_SIZE)",
                "rank 0 by hxa:29500 (told by HOCKET_ADDRESS)",
                f"key {FINGERPRINT} by HOCKET_KEY",
            ],
        ),
        (HOCKET, ["local rank 3 of 64 (HOCKET_LOCAL_RANK is not set, HOCKET_LOCAL_SIZE is not set)", "; no key"]),
        (SPREAD | {"HOCKET_KEY": KEY[1:]}, ["no key: HOCKET_KEY has 63 characters; expected 64 hex digits"]),
        (
            HYDRA,
            ["rank 1 of 2 (PMI_RANK, PMI_SIZE)", "rank 0 by the process manager of MPI (PMI_FD 7); key of rank 0, by"],
        ),
    ],
)
def test_a_rank_says_what_told_it_each_value_but_never_the_key(variables: dict[str, str], words: list[str]) -> None:
    said = describe_start(discover(variables=variables), variables)
    assert f"process {os.getpid()} on {socket.gethostname()}" in said
    assert [word for word in words if word not in said] == [], said
    assert KEY[:8] not in said and "\n" not in said
    assert "interface" not in said, "the route chooses it, unless a variable does"


def test_two_files_at_one_path_are_told_apart(tmp_path: Path) -> None:
    file, said = tmp_path / "key", []
    for byte in (1, 2, 1):
        file.write_bytes(bytes([byte]) * 32)
        file.chmod(0o600)
        variables = SPREAD | {"HOCKET_KEY_FILE": str(file)}
        said.append(describe_start(discover(variables=variables), variables))
    assert said[0] == said[2] != said[1] and f" by HOCKET_KEY_FILE {file}" in said[1]


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("=lo", "interfaces lo (127.0.0.1)"),
        ("=nothing", "no interface: HOCKET_SOCKET_IFNAME==nothing chooses no address on host"),
        ("lo,^eth", "no interface: HOCKET_SOCKET_IFNAME is 'lo,^eth'; expected ^ and = at its beginning"),
    ],
)
def test_a_rank_says_which_interfaces_the_variable_chooses(pattern: str, words: str) -> None:
    variables = SPREAD | {"HOCKET_KEY": KEY, "HOCKET_SOCKET_IFNAME": pattern}
    said = describe_start(discover(variables=variables), variables)
    assert words in said and "\n" not in said, said


def test_arguments_are_named_as_what_told_the_rank() -> None:
    assert "rank 1 of 2 (arguments)" in describe_start(discover(1, 2, "here", variables={}), {})


@pytest.mark.parametrize(
    ("value", "frames", "start"),
    [
        ("", False, False),
        ("0", False, False),
        ("1", True, False),
        ("INIT", False, True),
        ("init", False, True),
        ("INIT,1", True, True),
        ("0, INIT", False, True),
        ("yes", True, False),
    ],
)
def test_words_say_what_is_shown(value: str, frames: bool, start: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_DEBUG", value)
    assert (debugging(), debugging_start()) == (frames, start)


def test_each_rank_tells_it_before_it_looks_for_the_others() -> None:
    program = "import hocket; hocket.init(1, 2, address='nobody-is-there', timeout=0.01)"
    environment = os.environ | {"HOCKET_DEBUG": "INIT"}
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    first, *others = ended.stderr.splitlines()
    assert first.startswith("hocket INIT: rank 1 of 2 (arguments); process ")
    assert first.endswith("; all ranks on this host, at the name nobody-is-there")
    assert "did not come to the rendezvous" in others[-1]
