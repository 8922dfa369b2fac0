"""The settings of `hocket bench`: what it understands, and what it refuses before any rank starts."""

import json
import sys

import pytest

from hocket.cli import main
from hocket.cli.argument_types import parse_size
from hocket.cli.bench.bench_settings import find_dtypes, find_ops, type_in_nccl
from hocket.schedule import DTYPES
from tests.cli.printed import error_of


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["all_reduce", "-b", "64", "-e", "8"], "expected --minbytes up to --maxbytes (8), found 64"),
        (["all_reduce", "-b", "0", "-e", "8", "-f", "2"], "-f multiplies: expected --minbytes above 0, found 0"),
        (["all_reduce", "-b", "1", "-e", "8", "-i", "0"], "expected --stepbytes of at least 1, found 0"),
        (["all_reduce", "-b", "8Q"], "expected a size in bytes, such as 8, 64K, 1M or 2G; found '8Q'"),
        (["all_reduce", "-n", "0"], "expected a whole number of at least 1, found '0'"),
        (["all_reduced"], "expected a collective, one of all_reduce, "),
        (["all_reduce", "-o", "add"], "expected a reduction, one of sum, "),
        (["all_reduce", "-o", "avg", "-d", "int8"], "'avg' has no meaning for int8"),
        (["all_reduce", "-d", "float33"], "expected a dtype, one of float16, "),
        (["broadcast", "-r", "2", "--ranks", "2"], "expected --root from 0 to 1, or all; found 2"),
        (["broadcast", "-r", "two"], "expected a rank or all; found 'two'"),
        (["all_reduce", "--algorithm", "rong"], "'rong'"),
        (["all_reduce", "--algorithm", "ring,rong"], "'rong'"),
        (["all_reduce", "--algorithm", "ring,direct", "--format", "osu"], "has the times of one algorithm; found 2"),
        (["all_gather", "--order", "rank"], "expected no --order for all_gather, which reduces nothing"),
        (["sendrecv", "--ranks", "3"], "expected an even number of ranks, found 3"),
        (["all_reduce", "-J", "/none/found.json"], "expected an existing folder for /none/found.json; found none"),
        (["all_reduce", "-e", "1000000G"], "; choose a smaller --maxbytes"),
        (["sendrecv", "-m", "2"], "expected 1 for sendrecv, found 2"),
        (["all_reduce", "-e", "9" * 400], "expected a size of at most 1073741824G, found '99"),
        (["all_reduce", "-n", "9" * 20], "expected at most 2147483647, found '99999999999999999999'"),
        (["broadcast", "-g", "2000000000", "-r", "all"], "ranks: expected at most 1024 on one host"),
        (["all_reduce", "-t", "2"], "expected 1, because each rank is a process; use -g; found '2'"),
        (["all_reduce", "-g", "0"], "expected a whole number of at least 1, found '0'"),
        (["sendrecv", "--algorithm", "ring"], "expected no --algorithm for sendrecv"),
    ],
)
def test_what_it_refuses_before_any_rank_starts(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hocket.runtime.run_ranks", lambda *_, **__: pytest.fail("ranks were started"))
    assert said in error_of(capsys, "bench", *arguments)


def test_a_type_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ValueError, match=r"bfloat16 .*hocket\[types\]"):
        find_dtypes("bfloat16")
    assert "bfloat16" not in find_dtypes("all") and "float16" in find_dtypes("all")


def test_sizes_have_units() -> None:
    assert [parse_size(text) for text in ("8", "2k", "1.5M", "1G", "3KiB")] == [8, 2048, 3 << 19, 1 << 30, 3072]
    for text in ("", "K", "-1", "1T", "1e3"):
        with pytest.raises(ValueError, match="expected a size"):
            parse_size(text)


def test_names_of_types_are_also_those_of_nccl() -> None:
    for name in DTYPES:
        assert find_dtypes(type_in_nccl(name)) == find_dtypes(name) == (name,)
    assert find_ops("mulsum") == ("premul_sum",)


def test_another_number_of_ranks_than_were_started_is_said_as_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("HOCKET_RANK", "0"), ("HOCKET_SIZE", "2"), ("HOCKET_ADDRESS", "127.0.0.1:1")):
        monkeypatch.setenv(name, value)
    assert main(["bench", "all_reduce", "--ranks", "4", "-b", "8", "-e", "8", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"] == "--ranks 4, but 2 ranks were started; leave --ranks out"
