"""`hocket bench`: what it measures, that it counts wrong results, its tables, and what it refuses."""

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.cli import main
from hocket.cli.bench import bench_cases, bench_report, measure
from hocket.cli.bench.bench_cases import Buffers, make_case
from hocket.cli.bench.bench_settings import find_ops
from hocket.errors import CommunicationError, PeerDied
from hocket.runtime import Communicator, MachineCosts, run_ranks
from hocket.runtime.tuning import machine_costs
from hocket.runtime.tuning.machine_costs import PASSES
from hocket.schedule import COLLECTIVES, DTYPES, check_reduction, numpy_dtype

COSTS = MachineCosts(2, 1e-7, {kind: {4096: 2e10, 1 << 27: 1e10} for kind in PASSES}, dict.fromkeys(PASSES, 1.5e10))
WITH_DATA = [name for name, kind in COLLECTIVES.items() if kind.exactly_once]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ignores what was measured on this machine. All tests share their proofs."""
    monkeypatch.setenv("HOCKET_CACHE", str(folder))


SHORT = ("--ranks", "2", "-n", "2", "-w", "1")


def rows_of(table: str) -> list[list[str]]:
    return [line.split() for line in table.splitlines() if not line.startswith("#")]


# --- results -------------------------------------------------------------------------------------------------------


def num_wrong(
    collective: str, num_ranks: int, count: int, dtype: str = "float32", op: str = "sum", root: int = 0
) -> list[list[int | None]]:
    """Returns the wrong results by rank, out of place and in place."""

    def rank() -> list[int | None]:
        with hocket.init() as comm:
            return checked(comm, collective, count, dtype, op, root)

    return run_ranks(rank, num_ranks, kind="thread")


def checked(comm: Communicator, collective: str, count: int, dtype: str, op: str, root: int) -> list[int | None]:
    found: list[int | None] = []
    buffers = Buffers(count * numpy_dtype(dtype).itemsize, registered=False)
    for in_place in (False, True):
        case = make_case(comm, buffers, collective, count, dtype, op, root, in_place=in_place)
        if case is not None:
            case.fill(3)
            comm.barrier()
            case.call()
            found.append(case.num_wrong(3))
    return found


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("collective", WITH_DATA)
def test_what_is_right_is_found_right(collective: str, num_ranks: int) -> None:
    for count in (0, 30 * num_ranks, 30 * 2000):  # 1, 2 ... 5 ranks have blocks of whole elements
        for root in {0, num_ranks - 1}:
            assert num_wrong(collective, num_ranks, count, root=root) == [[0, 0]] * num_ranks


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_and_reduction_is_exact_in_any_order(dtype: str) -> None:
    def rank() -> list[tuple[str, list[int | None]]]:
        with hocket.init() as comm:
            return [(op, checked(comm, "all_reduce", 1 << 15, dtype, op, 0)) for op in ops]

    ops = [op for op in find_ops("all") if has_meaning(op, dtype)]
    for num_ranks in (2, 5, 9):  # float8_e5m2 cannot count to 9
        for found in run_ranks(rank, num_ranks, kind="thread"):
            assert found == [(op, [0, 0]) for op in ops]


def has_meaning(op: str, dtype: str) -> bool:
    try:
        check_reduction("sum" if op == "premul_sum" else op, numpy_dtype(dtype))
    except TypeError:
        return False
    return not (op == "premul_sum" and dtype == "bool")


@pytest.mark.parametrize("collective", WITH_DATA)
def test_what_is_wrong_is_counted(collective: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = getattr(Communicator, collective)

    def wrong(comm: Communicator, *arguments: Any, **more: Any) -> Any:
        found = right(comm, *arguments, **more)
        if comm.rank == 1 and found is not None:
            found[[0, 7, -1]] += 1
        return found

    monkeypatch.setattr(Communicator, collective, wrong)
    assert num_wrong(collective, 3, 60_000, "int32", root=1) == [[0, 0], [3, 3], [0, 0]]


def test_a_result_that_was_never_written_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Communicator, "all_gather", lambda *_, **__: None)
    assert num_wrong("all_gather", 2, 2000, "int64") == [[2000, 1000]] * 2


def test_a_message_that_is_wrong_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert num_wrong("sendrecv", 4, 5000) == [[0, None]] * 4
    right = Communicator.recv

    def wrong(comm: Communicator, x: Any, *arguments: Any, **more: Any) -> Any:
        found = right(comm, x, *arguments, **more)
        x[5:9] += 1
        return found

    monkeypatch.setattr(Communicator, "recv", wrong)
    assert num_wrong("sendrecv", 2, 5000, "int32") == [[4, None]] * 2


def test_a_barrier_that_does_not_wait_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert num_wrong("barrier", 3, 0) == [[0]] * 3
    monkeypatch.setattr(Communicator, "barrier", lambda _: None)
    assert num_wrong("barrier", 2, 0)[0] == [1]  # seed 3: rank 1 came late


def test_the_command_says_that_a_result_was_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("HOCKET_RANK", "0"), ("HOCKET_SIZE", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(bench_cases, "differences", lambda *_: 2)
    file = tmp_path / "found.json"
    assert main(["bench", "all_reduce", "-b", "64", "-e", "64", "-n", "1", "-J", str(file)]) == 1
    printed = capfd.readouterr().out
    assert [row[8] for row in rows_of(printed)] == ["2"]
    assert "# Out of bounds values : 2 FAILED" in printed
    assert json.loads(file.read_text())["out_of_bounds"] == {"count": 2, "okay": False}


@pytest.mark.parametrize("which", [0, 1], ids=["out of place", "in place"])
def test_the_table_of_the_osu_benchmarks_shows_wrong_results(
    which: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("HOCKET_RANK", "0"), ("HOCKET_SIZE", "1")):
        monkeypatch.setenv(name, value)
    wrong = iter([which == mode for mode in (0, 1)])
    monkeypatch.setattr(bench_cases, "differences", lambda *_: int(next(wrong)))
    assert main(["bench", "all_reduce", "-b", "64", "-e", "64", "-n", "1", "--format", "osu"]) == 1
    assert rows_of(capfd.readouterr().out)[0][-1] == "Fail"


# --- tables --------------------------------------------------------------------------------------------------------


def test_the_first_columns_are_those_of_nccl(bench: Callable[..., str]) -> None:
    found = bench("all_reduce", "-b", "8", "-e", "4K", "-f", "4", *SHORT)
    *_, modes, names, units = [line for line in found.partition("\n   ")[0].splitlines() if line.startswith("#")]
    assert modes.split() == ["#", "out-of-place", "in-place"] * 2 or modes.split()[1:3] == ["out-of-place", "in-place"]
    measured = ["time", "algbw", "busbw", "#wrong"] * 2
    place = ["size", "count", "type", "redop", "root"]
    assert names.split() == ["#", *place, *measured, *["bound(us)", "%bound"] * 2]
    assert units.split() == ["#", "(B)", "(elements)", *["(us)", "(GB/s)", "(GB/s)"] * 2]
    rows = rows_of(found)
    assert [row[:5] for row in rows] == [
        [str(size), str(size // 4), "float", "sum", "-1"] for size in (8, 32, 128, 512, 2048)
    ]
    for row in rows:
        assert (row[8], row[12], row[13:]) == ("0", "0", ["-"] * 4)
    assert "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : " in found
    assert "run `hocket tune --measure`" in found


def test_bounds_stand_beside_where_the_machine_was_measured(
    bench: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOCKET_CACHE", str(tmp_path))
    machine_costs.store(COSTS)
    [row] = rows_of(bench("all_reduce", "-b", "1M", "-e", "1M", *SHORT))
    # The costs are made up, so times may be below the bounds. The test checks that each share is bound / time.
    for time, bound, share in ((row[5], row[13], row[14]), (row[9], row[15], row[16])):
        assert float(bound) > 0 and float(share) == pytest.approx(100 * float(bound) / float(time), rel=0.02)


def test_bound_ranks_have_the_bounds_of_all_their_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of two processes may use only its own share of the cores; the measured costs are of both shares."""
    cores = len(os.sched_getaffinity(0))
    monkeypatch.setenv("HOCKET_CACHE", str(tmp_path))
    machine_costs.store(COSTS)
    call = ["bench", "all_reduce", "-b", "1M", "-e", "1M", "-n", "2", "-w", "1", "--json"]
    program = [sys.executable, "-m", "hocket"]
    for command in ([*program, *call, "--ranks", "2"], [*program, "run", "-n", "2", "--", "-m", "hocket", *call]):
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert found["config"]["cores"] == cores and found["bounds"] == "measured"
        assert found["results"][0]["out_of_place"]["bound"] > 0


def test_a_bound_below_what_the_clock_can_tell_is_left_out(
    bench: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broadcast of 8 B needs no hop between one call and the next, only less than a nanosecond of copying."""
    monkeypatch.setenv("HOCKET_CACHE", str(tmp_path))
    machine_costs.store(COSTS)
    call = ("broadcast", "-b", "8", "-e", "8", *SHORT)
    assert rows_of(bench(*call))[0][13:] == ["-"] * 4
    [row] = json.loads(bench(*call, "--json"))["results"]
    assert 0 < row["out_of_place"]["bound"] < 1e-3


def test_one_is_not_many(bench: Callable[..., str]) -> None:
    found = bench("all_reduce", "-b", "6", "-e", "6", "-g", "1", "-t", "1", "-n", "1", "-w", "0")
    assert ": 1 rank on " in found and "# Sizes are rounded down to whole elements\n" in found


def test_steps_are_added_or_multiplied(bench: Callable[..., str]) -> None:
    added = rows_of(bench("broadcast", "-b", "1K", "-e", "4K", "-i", "1K", "-d", "int8", "-r", "1", *SHORT))
    assert [row[:5] for row in added] == [[str(n), str(n), "int8", "none", "1"] for n in (1024, 2048, 3072, 4096)]


@pytest.mark.parametrize(
    "options",
    [
        ["all_reduce", "-b", "8", "-e", "8", "-i", "0"],
        ["all_reduce", "-b", "0", "-e", "0", "-f", "2"],
        ["barrier", "-i", "0"],
        ["barrier", "-b", "0", "-e", "0", "-f", "2"],
    ],
)
def test_one_size_needs_no_step(options: list[str], bench: Callable[..., str]) -> None:
    assert [row[0] for row in rows_of(bench(*options, *SHORT))] == ["8" if "8" in options else "0"]


def test_sizes_are_rounded_down_to_whole_blocks_and_that_is_said(bench: Callable[..., str]) -> None:
    found = bench("reduce_scatter", "-b", "100", "-e", "100", "--ranks", "3", "-n", "1", "-w", "0")
    assert rows_of(found)[0][:2] == ["96", "8"]
    assert "# Sizes are rounded down to whole blocks: multiples of 3 elements\n" in found
    assert "rounded down" not in bench("all_reduce", "-b", "100", "-e", "100", *SHORT)


def test_all_types_reductions_and_roots(bench: Callable[..., str]) -> None:
    found = rows_of(bench("reduce", "-b", "64", "-e", "64", "-o", "all", "-d", "half", "-r", "all", *SHORT))
    ops = ["sum", "prod", "min", "max", "avg", "land", "lor", "lxor", "mulsum"]
    assert [(row[2], row[3], row[4]) for row in found] == [("half", op, root) for op in ops for root in "01"]
    assert {(row[8], row[12]) for row in found} == {("0", "0")}


def test_json_is_one_object_and_a_file(bench: Callable[..., str]) -> None:
    found = json.loads(bench("all_gather", "-b", "4K", "-e", "8K", "-f", "2", "--json", *SHORT))
    assert found["config"]["collective"] == "all_gather" and found["config"]["num_ranks"] == 2
    assert found["out_of_bounds"] == {"count": 0, "okay": True}
    assert [row["size"] for row in found["results"]] == [4096, 8192]
    for row in found["results"]:
        for mode in ("out_of_place", "in_place"):
            one = row[mode]
            assert one["bus_bw"] == pytest.approx(one["alg_bw"] / 2)
            assert one["alg_bw"] == pytest.approx(row["size"] / one["time"] / 1e3)
            assert 0 < one["p50"] <= one["p99"] and one["minimum"] <= one["average"] <= one["maximum"] == one["time"]
            assert one["nwrong"] == 0 and one["bound"] is None and one["actual_iterations"] == 2


def test_csv_has_a_line_for_each_mode(bench: Callable[..., str]) -> None:
    found = list(csv.DictReader(io.StringIO(bench("scatter", "-b", "64", "-e", "64", "--format", "csv", *SHORT))))
    assert [one["mode"] for one in found] == ["out_of_place", "in_place"]
    assert all(one["collective"] == "scatter" and float(one["time"]) > 0 and one["nwrong"] == "0" for one in found)


def test_the_table_of_the_osu_benchmarks(bench: Callable[..., str]) -> None:
    found = bench("allreduce", "-b", "8", "-e", "16", "-f", "2", "--format", "osu", *SHORT).splitlines()
    assert found[0] == "# Hocket Allreduce Latency Test"
    titles = ["Avg Latency(us)", "Min Latency(us)", "Max Latency(us)", "Iterations"]
    assert re.split(r"  +", found[1]) == ["# Size", *titles, "Validation"]
    for line, size in zip(found[2:], ("8", "16"), strict=True):
        assert re.fullmatch(size + r" +\d+\.\d\d +\d+\.\d\d +\d+\.\d\d +2 +Pass", line)
    unchecked = bench("allreduce", "-b", "8", "-e", "8", "-c", "0", "--format", "osu", *SHORT)
    assert "Validation" not in unchecked and "Pass" not in unchecked


@pytest.mark.parametrize(
    ("collective", "size"),
    [
        ("all_gather", "4"),
        ("all_to_all", "4"),
        ("gather", "4"),
        ("scatter", "4"),
        ("reduce_scatter", "8"),
        ("broadcast", "8"),
    ],
)
def test_the_osu_benchmarks_count_bytes_of_a_rank_where_nothing_is_reduced(
    collective: str, size: str, bench: Callable[..., str]
) -> None:
    assert rows_of(bench(collective, "-b", "8", "-e", "8", "--format", "osu", *SHORT))[0][0] == size


def test_the_title_of_messages_is_that_of_the_osu_benchmarks(bench: Callable[..., str]) -> None:
    found = bench("sendrecv", "-b", "8", "-e", "8", "--format", "osu", *SHORT)
    assert found.startswith("# Hocket Multi Latency Test\n")


def fail_at_the_second_size(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    right = measure.Bench._row

    def row(one: measure.Bench, buffers: Buffers, size: int, *run: Any) -> bench_report.Row:
        if size == 16:
            raise error
        return right(one, buffers, size, *run)

    for name, value in (("HOCKET_RANK", "0"), ("HOCKET_SIZE", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(measure.Bench, "_row", row)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [(KeyboardInterrupt(), 130, "interrupted"), (CommunicationError("it broke"), 2, "it broke")],
)
@pytest.mark.parametrize("format", ["nccl", "json"])
def test_json_keeps_what_was_measured_before_an_error(
    format: str,
    error: BaseException,
    code: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fail_at_the_second_size(monkeypatch, error)
    file = tmp_path / "found.json"
    call = ("bench", "all_reduce", "-b", "8", "-e", "32", "-f", "2", "-n", "1", "-w", "0", "-J", str(file))
    assert main([*call, "--format", format]) == code
    found = json.loads(file.read_text())
    assert [row["size"] for row in found["results"]] == [8] and found["error"] == said
    printed = capsys.readouterr()
    assert said in printed.err
    if format == "json":
        assert json.loads(printed.out) == found


def test_the_parent_says_in_json_that_rank_0_died(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank, expected in ((0, '{"error": "gone"}\n'), (1, "")):  # a rank 0 that lives prints the error itself

        def die(*_: Any, rank: int = rank, **__: Any) -> list[Any]:
            raise PeerDied("gone", rank=rank)

        monkeypatch.setattr("hocket.runtime.run_ranks", die)
        assert main(["bench", "all_reduce", *SHORT, "--json"]) == 2
        assert capsys.readouterr() == (expected, "hocket bench: gone\n")


def test_an_error_is_json_where_that_is_the_format(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "foo", "--format", "json"]) == 2
    assert "found 'foo'" in json.loads(capsys.readouterr().out)["error"]


def test_a_file_that_cannot_hold_the_json_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("HOCKET_RANK", "0"), ("HOCKET_SIZE", "1")):
        monkeypatch.setenv(name, value)
    assert main(["bench", "all_reduce", "-b", "8", "-e", "8", "-n", "1", "-J", "/dev/full"]) == 2
    assert "found '/dev/full': No space left on device" in capsys.readouterr().err


def test_percentiles_in_the_table(bench: Callable[..., str]) -> None:
    found = bench("barrier", "--percentiles", *SHORT)
    [row] = rows_of(found)
    assert row[:5] == ["0", "0", "none", "none", "-1"] and row[9:13] == ["-"] * 4
    assert 0 < float(row[15]) <= float(row[16]) and row[17:] == ["-"] * 4


@pytest.mark.parametrize(
    "options",
    [
        ["all_reduce", "--memory", "registered", "--order", "invariant"],
        ["all_reduce", "--algorithm", "ring", "-z", "1", "-m", "3", "-a", "1", "-T", "60", "-c", "2"],
        ["alltoall", "-d", "bfloat16", "-c", "0"],
        ["all_to_all_v", "-d", "f8e5m2"],
        ["sendrecv", "-d", "bool"],
    ],
)
def test_other_options(options: list[str], bench: Callable[..., str]) -> None:
    [row] = rows_of(bench(*options, "-b", "6K", "-e", "6K", *SHORT))
    unchecked = ["N/A", "N/A"] if "0" in options else ["0", "N/A" if "sendrecv" in options else "0"]
    assert [row[8], row[12]] == unchecked


def test_processes_of_its_own() -> None:
    command = [sys.executable, "-m", "hocket", "bench", "all_gather", "-b", "64K", "-e", "64K", "--json", *SHORT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["out_of_bounds"]["okay"] and found["args"] == ["hocket", *command[3:]]


def test_it_uses_the_ranks_that_are_there() -> None:
    command = [sys.executable, "-m", "hocket", "run", "-n", "3", "--", "-m", "hocket", "bench", "all_reduce"]
    done = subprocess.run(
        [*command, "-b", "8", "-e", "8", "-n", "1"], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "all_reduce: 3 ranks" in done.stdout and len(rows_of(done.stdout)) == 1
    done = subprocess.run([*command, "--ranks", "2"], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 2 and "--ranks 2, but 3 ranks were started; leave --ranks out" in done.stderr


def test_control_c_ends_it_and_says_what_is_valid() -> None:
    command = [sys.executable, "-m", "hocket", "bench", "barrier", "-n", "1000000000", "--ranks", "2"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it is measuring
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said == "hocket bench: interrupted; the rows printed above are complete\n"


# --- numbers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("collective", "factor"),
    [
        ("all_reduce", 1.5),
        ("reduce_scatter", 0.75),
        ("all_gather", 0.75),
        ("all_to_all", 0.75),
        ("gather", 0.75),
        ("scatter", 0.75),
        ("broadcast", 1),
        ("reduce", 1),
        ("sendrecv", 1),
    ],
)
def test_bus_bandwidth_is_defined_as_by_nccl(collective: str, factor: float) -> None:
    assert bench_report.bus_factor(collective, 4) == factor


@pytest.mark.parametrize(
    ("value", "width", "text"),
    [
        (0.144, 7, "0.14"),
        (1234.567, 7, "1234.57"),
        (123456.78, 7, "123457"),
        (12345.678, 7, "12345.7"),
        (1e9, 7, "1e+09"),
    ],
)
def test_numbers_keep_their_column(value: float, width: int, text: str) -> None:
    assert bench_report.fixed(value, width) == text


def test_contributions_differ_between_ranks_and_rounds() -> None:
    for dtype in ("float8_e5m2", "int8", "complex64"):
        first, second, third = (
            bench_cases.pattern("sum", dtype, rank, 3, seed) for rank, seed in ((0, 1), (1, 1), (0, 2))
        )
        assert np.count_nonzero(first != second) > 1000 and np.count_nonzero(first != third) > 1000
