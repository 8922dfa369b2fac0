"""Logs of benchmarks: what is read from each, and that what is cut, damaged or in other units is refused by line."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.network import MeasuredTable, read_log, read_log_text
from tests.network.measured_logs import A100_X8, A100_X16, Row, nccl_json, nccl_log, osu_log

TEXT = nccl_log(A100_X16, [8, 8])
FASTER = [(size, min(times) * 1e-6) for size, *times in A100_X16]


def calls(table: MeasuredTable) -> list[tuple[int, float]]:
    return [(call.num_bytes, pytest.approx(call.seconds)) for call in table.calls]


def refused(text: str) -> str:
    with pytest.raises(ValueError) as raised:
        read_log_text(text, "my.log")
    assert str(raised.value).startswith("my.log")
    return str(raised.value)


def test_text_of_nccl_tests() -> None:
    [table] = read_log_text(TEXT, "my.log")
    assert (table.collective, table.num_ranks, table.ranks_per_host) == ("all_reduce", 16, (8, 8))
    assert calls(table) == FASTER
    assert TEXT.split("\n")[int(table.calls[0].where.removeprefix("line ")) - 1].split()[0] == "8"


@pytest.mark.parametrize("lines", ["[0] NCCL INFO Connected all rings", "8 more processes have sent help message", ""])
def test_lines_of_others_between_the_rows_are_passed_over(lines: str) -> None:
    rows = TEXT.split("\n")
    mixed = "\n".join([*rows[:30], lines, *rows[30:]])
    assert calls(read_log_text(mixed, "my.log")[0]) == FASTER


@pytest.mark.parametrize(
    "tag",
    [
        "[1,0]<stdout>:",
        "[prterun-host0-4711@1,0]<stdout>: ",
        "Thu Nov  6 10:00:00 2025[1,0]<stdout>:",
        "0: ",
        " 0: ",
        "[0] ",
        "2025-11-06T10:00:00.123456789Z ",
        "    ",
    ],
)
def test_tags_of_launchers_are_passed_over(tag: str) -> None:
    for text, expected in ((TEXT, FASTER), (osu_log(A100_X8), [(size, out * 1e-6) for size, out, _ in A100_X8])):
        tagged = "\n".join(f"{tag}{line}" for line in text.split("\n"))
        assert calls(read_log_text(tagged, "my.log")[0]) == expected


@pytest.mark.parametrize(
    ("title", "unit", "cell"),
    [
        ("timestamp", "%Y-%m-%d %H:%M:%S", "2025-11-06 10:00:00"),
        ("#iters", "", "20"),
        ("#bitdiff i_min i_max i_p99 i_cv%", "(us) (us) (us) (%)", "0 17.7 21.8 21.8 4.5"),
    ],
)
def test_columns_of_later_versions_are_passed_over(title: str, unit: str, cell: str) -> None:
    lines = TEXT.split("\n")
    more = [
        f"{line} {title if 'algbw' in line else unit if '(us)' in line else cell if ' float ' in line else ''}"
        for line in lines
    ]
    assert calls(read_log_text("\n".join(more), "my.log")[0]) == FASTER
    assert "expected the units" in refused("\n".join(more).replace("(GB/s)", "(MB/s)"))


def with_rows(change: Callable[[list[str]], list[str]]) -> str:
    lines = TEXT.split("\n")
    rows = [number for number, line in enumerate(lines) if " float " in line]
    return "\n".join([*lines[: rows[0]], *change(lines[rows[0] : rows[-1] + 1]), *lines[rows[-1] + 1 :]])


def test_of_several_passes_the_fastest_counts() -> None:
    """With -N the sizes come several times, with -d all once for each type."""
    first = [
        "# Testing 1 cycle.",
        "           8             2     float     sum      -1     9.00    0.00    0.00      0",
    ]
    faster = with_rows(lambda rows: [*first, *(row[:80] for row in rows[1:]), "# Testing 2 cycle.", *rows])
    assert "expected 13 values" in refused(faster)
    twice = with_rows(lambda rows: [*rows, *(row.replace("float", "int32").replace("34.74", "30.00") for row in rows)])
    assert calls(read_log_text(twice, "my.log")[0]) == [(8, pytest.approx(30e-6)), *FASTER[1:]]
    assert "expected 31 rows" in refused(with_rows(lambda rows: [*rows, *rows[:-1]]))


def test_tables_that_are_not_predicted_are_passed_over() -> None:
    messages = TEXT.replace("all_reduce_perf", "sendrecv_perf")
    assert len(read_log_text(messages + TEXT, "my.log")) == len(read_log_text(TEXT + messages, "my.log")) == 1
    bandwidth = "# OSU MPI Bandwidth Test v7.4\n# Size      Bandwidth (MB/s)\n1        2.10\n"
    gather = osu_log(A100_X8, "OSU MPI Gather Latency Test v7.4")
    [table] = read_log_text(bandwidth + osu_log(A100_X8) + gather + bandwidth, "my.log")
    assert table.collective == "all_reduce" and len(table.calls) == len(A100_X8)
    assert "line 1: expected a collective that is predicted" in refused(bandwidth)


def test_one_rank_alone_sends_nothing() -> None:
    [table] = read_log_text(nccl_log(A100_X8, [1]), "my.log")
    with pytest.raises(ValueError, match="expected 2 ranks or more; found 1"):
        table.placed(None, None, 8)
    line_by_line = zip(nccl_log(A100_X8, [1]).split("\n"), nccl_log(A100_X8, [1]).split("\n"), strict=True)
    assert "MPI=1" in refused("\n".join(line for both in line_by_line for line in both))


def test_the_format_of_old_versions() -> None:
    """Without root, and with the largest error in place of a number of wrong values (nccl #527)."""
    lines = [
        "mpirun -np 8 all_reduce_perf -b 1G -e 2G -f 2",
        "       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error",
        "        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)",
        "  1073741824     268435456   float     sum   8142.6  131.87  230.77  2e-07   8141.2  131.89  230.81  2e-07",
        "",
    ]
    [table] = read_log_text("\n".join(lines), "my.log")
    assert table.num_ranks == 8 and calls(table) == [(1 << 30, 8141.2e-6)]


def test_several_runs_in_one_file() -> None:
    gathered = [(size, 2 * out, 2 * within) for size, out, within in A100_X8]
    first, second = read_log_text(nccl_log(A100_X8, [8]) + nccl_log(gathered, [4, 4], "all_gather"), "my.log")
    assert (first.collective, first.ranks_per_host) == ("all_reduce", (8,))
    assert (second.collective, second.ranks_per_host) == ("all_gather", (4, 4))


def pasted(rows: list[Row], hosts: list[int]) -> str:
    lines = nccl_log(rows, hosts, header=False).split("\n")
    return "\n".join(line.removeprefix("#") for line in lines if " Rank " not in line)


def test_a_table_alone_says_its_ranks_by_its_bandwidths() -> None:
    assert read_log_text(pasted(A100_X16, [8, 8]), "my.log")[0].num_ranks == 16
    assert read_log_text(pasted(A100_X16[:14], [8, 8]), "my.log")[0].num_ranks == 0  # bandwidths of few digits
    [table] = read_log_text(pasted(A100_X8, [8]), "my.log")
    assert (table.collective, table.num_ranks, table.ranks_per_host) == ("all_reduce", 8, ())
    assert table.placed(None, 2, 8).ranks_per_host == (4, 4)
    with pytest.raises(ValueError, match="the log is of 8 ranks; found ranks=16"):
        table.placed(16, None, 8)


def test_json_of_nccl_tests_is_its_text() -> None:
    [table] = read_log_text(nccl_json(A100_X16, [8, 8]), "my.json")
    assert (table.collective, table.num_ranks, table.ranks_per_host) == ("all_reduce", 16, (8, 8))
    assert calls(table) == FASTER


@pytest.mark.parametrize(
    "title",
    [
        "OSU MPI Allreduce Latency Test v5.8",
        "OSU NCCL-CUDA Allreduce Latency Test v7.5",
        "Hocket Allreduce Latency Test",
    ],
)
def test_osu(title: str) -> None:
    [table] = read_log_text(osu_log(A100_X8, title), "my.log")
    assert table.collective == "all_reduce" and table.num_ranks == 0
    assert calls(table) == [(size, out * 1e-6) for size, out, _ in A100_X8]
    with pytest.raises(ValueError, match="expected the number of ranks"):
        table.placed(None, None, 8)


def test_a_number_of_ranks_that_cannot_be_is_refused() -> None:
    many = nccl_json(A100_X8, [8]).replace('"ngpus": 1', '"ngpus": 100000')
    assert "expected at most 131072 ranks; found 800000" in refused(many)
    assert "config.ngpus" in refused(many.replace("100000", "1000000"))
    with pytest.raises(ValueError, match="expected at most 131072 ranks"):
        read_log_text(osu_log(A100_X8), "my.log")[0].placed(1 << 40, None, 8)


def test_a_cut_json_is_refused_by_line() -> None:
    lines = nccl_json(A100_X8, [8]).replace(", ", ",\n").split("\n")
    assert refused("\n".join(lines[:40])).startswith("my.log, line 40: expected one whole JSON object")
    assert refused("\n".join([*lines[:20], "}", *lines[20:]])).startswith("my.log, line 21: expected one whole JSON")


def test_later_versions_of_the_json() -> None:
    later = nccl_json(A100_X16, [8, 8]).replace('"version": 1', '"version": 4').replace("0.0}", 'null, "more": 1}')
    assert calls(read_log_text(later, "my.json")[0]) == FASTER


CSV = """\
collective,ranks,algorithm,size,count,mode,time,alg_bw,bus_bw,nwrong,bound
all_reduce,4,ring,1024,256,out_of_place,8.0,0.128,0.192,0,
all_reduce,4,ring,1024,256,in_place,6.4,0.16,0.24,,
all_reduce,4,ring,4096,1024,in_place,12.8,0.32,0.48,0,
"""


def test_csv_of_bench() -> None:
    [table] = read_log_text(CSV, "my.csv")
    assert (table.collective, table.num_ranks) == ("all_reduce", 4)
    assert calls(table) == [(1024, 6.4e-6), (4096, 12.8e-6)]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("12.8,", "0,", "line 4.in_place.time: expected a time in us, above 0"),
        ("12.8,", "0.0128,", "line 4.in_place.alg_bw: expected size / time"),
        (",0.48,0,\n", "", "line 4: expected 11 values"),
        ("in_place,12.8", "beside,12.8", "line 4: expected a mode"),
        ("all_reduce,4,ring,4096", "all_reduce,8,ring,4096", "line 4: expected one collective"),
        ("bus_bw", "bandwidth", "line 1: expected a column bus_bw"),
        (",,", ",x,", "line 3: expected a number in the column nwrong"),
        ("ring,4096", "ring,inf", "line 4: expected a number in the column size; found 'inf'"),
    ],
)
def test_damaged_csv_is_refused(old: str, new: str, says: str) -> None:
    assert old in CSV
    assert says in refused(CSV.replace(old, new, 1))


def test_osu_counts_the_bytes_of_each_rank() -> None:
    [table] = read_log_text(osu_log(A100_X8, "OSU MPI All-to-All Personalized Exchange Latency Test v7.5"), "my.log")
    placed = table.placed(16, None, 8)
    assert placed.collective == "all_to_all" and placed.ranks_per_host == (8, 8)
    assert [call.num_bytes for call in placed.calls] == [16 * size for size, *_ in A100_X8]


WRONG = [  # what is replaced in the log, by what, and what the error says
    ("(us)", "(ms)", "expected the units"),
    ("(B)", "(KB)", "expected the units"),
    ("#wrong", "#lost", "expected columns of nccl-tests"),
    ("  time", "cputime", "run without -C"),
    ("  8252.70", "        0", "expected a time in us, above 0"),
    ("  8252.70", "      nan", "expected a number"),
    ("  8252.70", "  8.25270", "expected algbw = size / time"),
    ("  8252.70", "         ", "expected 13 values"),
    ("  1073741824", "  1073741825", "expected a size of whole float elements"),
    ("   float", "   flaot", "did you mean 'float'"),
    ("all_reduce_perf", "sendrecv_perf", "expected a collective that is predicted on machines"),
    ("all_reduce_perf", "all_gather_perf", "expected busbw / algbw"),
    ("Rank  7", "Rank  8", "expected rank 7; found rank 8"),
    ("      0\n", "      3\n", "found 3 wrong values"),
]


@pytest.mark.parametrize(("old", "new", "says"), WRONG)
def test_damage_is_refused_by_line(old: str, new: str, says: str) -> None:
    good = nccl_log(A100_X8, [8])
    assert old in good
    message = refused(good.replace(old, new, 1))
    assert says in message and message.startswith("my.log, line ")


def test_a_missing_row_is_refused() -> None:
    lines = nccl_log(A100_X8, [8]).split("\n")
    row = next(number for number, line in enumerate(lines) if line.lstrip().startswith("1024 "))
    assert "expected 30 rows, from 8 to 4294967296 bytes; found 29" in refused(
        "\n".join(lines[:row] + lines[row + 1 :])
    )


@pytest.mark.parametrize(
    "text", ["", "no log\n", '{"a": 1}', "[]", '{"version": 1}', "# OSU MPI Allreduce Latency Test\n"]
)
def test_other_files_are_refused(text: str) -> None:
    refused(text)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected a readable log; found"):
        read_log(tmp_path / "none.log")


LOGS = [nccl_log(A100_X8, [8]), nccl_json(A100_X8, [8]), osu_log(A100_X8)]


@pytest.mark.parametrize("text", LOGS, ids=["nccl", "json", "osu"])
def test_a_cut_log_is_read_rightly_or_refused(text: str) -> None:
    whole = read_log_text(text, "my.log")[0].calls
    chosen = random.Random(1)
    for end in sorted(chosen.sample(range(len(text)), 250)):
        try:
            [table] = read_log_text(text[:end], "my.log")
        except ValueError as error:
            assert str(error).startswith("my.log")
        else:
            assert table.calls == whole[: len(table.calls)]


@settings(max_examples=120, deadline=None, derandomize=True)
@given(st.sampled_from(LOGS), st.data())
def test_a_changed_log_is_read_or_refused(text: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(text) - 1))
    length = data.draw(st.integers(0, 40))
    put = data.draw(st.text(alphabet='0123456789.eE+-#() \n"{}[]:,xnaN\u00e9', max_size=8))
    try:
        tables = read_log_text(text[:at] + put + text[at + length :], "my.log")
    except ValueError as error:
        assert str(error).startswith("my.log")
    else:
        for table in tables:
            assert table.calls and all(call.num_bytes > 0 and 0 < call.seconds < 1e9 for call in table.calls)
