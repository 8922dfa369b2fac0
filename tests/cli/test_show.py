import json
import subprocess
import sys
from pathlib import Path

import pytest

from hocket.algorithms import ALGORITHMS, algorithm
from hocket.cli import main
from hocket.runtime import Policy, choose
from hocket.runtime.choice.select import ORDERS
from hocket.runtime.choice.tuner_file import read
from hocket.runtime.ranks import cores
from hocket.schedule import COLLECTIVES


def show(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["show", *arguments])
    return code, capsys.readouterr().out


def test_many_ranks_are_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = show(capsys, "ring", "--collective", "all_gather", "-n", "65")
    assert code == 0
    assert (
        "As a list, because a matrix shows at most 64 ranks.\n\nstep 0\n  rank 0: c64 = r64\n  rank 1: c0 = r0\n"
        in text
    )
    assert "  rank 63: c62 = r62\n  ... and 1 more rank; --json has all\nstep 1\n" in text
    assert "step 63\n" in text and "step 64\n" not in text


def test_huge_schedules_are_neither_proved_nor_written_out(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = show(capsys, "ring", "-n", "20000")
    assert code == 0 and text.endswith("not proved: the schedule has 799,960,000 rows; use hocket verify\n")
    assert main(["show", "ring", "-n", "20000", "--json"]) == 2
    assert "expected at most 4,194,304 rows as JSON, found 799,960,000" in capsys.readouterr().err


LAID_OUT = """
import hocket

@hocket.algorithm("all_gather", name="grid", chunks=lambda p: p, dims=lambda p: (1, p))
def grid(schedule):
    "Rings along rows, then along columns."
    rows, columns = schedule.dims
    rank = schedule.ranks
    row, column = rank // columns, rank % columns
    for i in range(columns - 1):
        with schedule.step():
            goal, chunk = row * columns + (column + 1) % columns, row * columns + (column - i) % columns
            schedule.copy(src=rank, dst=goal, chunk=chunk)
    for i in range(rows - 1):
        with schedule.step():
            for c in range(columns):
                schedule.copy(src=rank, dst=(rank + columns) % len(rank), chunk=(row - i) % rows * columns + c)

@hocket.algorithm("broadcast", name="leaders", chunks=lambda p: 1, groups=lambda p: (p,))
def leaders(schedule):
    "First the first rank of each group, counted from the root, then the others."
    p = schedule.num_ranks
    firsts = [sum(schedule.groups[:number]) for number in range(len(schedule.groups))]
    for first in firsts[1:]:
        with schedule.step():
            schedule.copy(src=schedule.root, dst=(first + schedule.root) % p, chunk=0)
    with schedule.step():
        for first, size in zip(firsts, schedule.groups):
            for rank in range(first + 1, first + size):
                schedule.copy(src=(first + schedule.root) % p, dst=(rank + schedule.root) % p, chunk=0)
"""


@pytest.fixture
def laid_out(tmp_path: Path) -> str:
    path = tmp_path / "laid_out.py"
    path.write_text(LAID_OUT)
    return str(path)


def test_groups_and_dims_are_handed_on(laid_out: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = show(capsys, f"{laid_out}:grid", "--dims", "2x3")
    assert code == 0 and text.startswith("all_gather grid, 6 ranks, on a grid of 2x3\n") and "3 steps;" in text
    code, text = show(capsys, f"{laid_out}:leaders", "--groups", "3,2", "--json")
    shown = json.loads(text)
    assert code == 0 and (shown["num_ranks"], shown["groups"], shown["dims"]) == (5, [3, 2], None)
    assert [[row["dst"] for row in step] for step in shown["steps"]] == [[3], [1, 2, 4]]
    code, text = show(capsys, "hierarchical", "-n", "64")
    assert code == 0 and text.startswith("all_reduce hierarchical, 64 ranks, in 8 groups of 8\n")
    assert main(["verify", f"{laid_out}:leaders", "--groups", "3,2"]) == 0
    assert "5 schedules proved" in capsys.readouterr().out


def test_what_else_a_file_has_is_named(laid_out: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = show(capsys, laid_out)
    assert code == 0 and text.startswith("all_gather grid, 4 ranks")
    assert f"\nin the same file: {laid_out}:leaders\n" in text and "--collective" not in text
    code, text = show(capsys, f"{laid_out}:leaders")
    assert code == 0 and text.startswith("broadcast leaders, 4 ranks") and "in the same file" not in text


def test_of_two_for_one_collective_one_has_to_be_named(laid_out: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(laid_out).write_text(LAID_OUT + LAID_OUT.replace('"leaders"', '"[lead]"').replace('"grid"', '"[net]"'))
    for options, names in (([], "grid, [net] for all_gather"), (["--collective", "broadcast"], "leaders, [lead] for")):
        assert main(["show", laid_out, *options]) == 2
        printed = capsys.readouterr()
        assert f"expected {laid_out}:NAME, one of {names}" in printed.err and not printed.out
    assert show(capsys, f"{laid_out}:[net]")[1].startswith("all_gather [net], 4 ranks")


@pytest.mark.parametrize("command", ["show", "verify"])
@pytest.mark.parametrize(
    ("name", "layout", "words"),
    [
        ("grid", ["--dims", "2x3", "-n", "5"], "expected dims, whole numbers from 1 whose product is 5; found (2, 3)"),
        ("leaders", ["--dims", "2x3"], "expected no dims, which it does not take; found (2, 3)"),
        ("grid", ["--groups", "3,2"], "expected no groups, which it does not take; found (3, 2)"),
    ],
)
def test_a_bad_layout_is_one_line(
    command: str, name: str, layout: list[str], words: str, laid_out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    layout = [{"-n": "--ranks"}.get(word, word) for word in layout]
    assert main([command, f"{laid_out}:{name}", *layout]) == 2
    printed = capsys.readouterr().err
    assert words in printed and printed.count("\n") == 1


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (["--groups", "3,,2"], "expected sizes of groups, for example 3,2; found '3,,2'"),
        (["--groups", "0"], "expected sizes of groups, for example 3,2; found '0'"),
        (["--dims", "2*3"], "expected lengths of a grid, for example 2x3; found '2*3'"),
    ],
)
def test_a_layout_is_whole_numbers(option: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["show", "ring", *option])
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ring", "--order", "rank"], "--order belongs to `hocket show choice`; found 'ring'"),
        (["ring", "--tuner-file", "x.csv"], "--tuner-file belongs to `hocket show choice`; found 'ring'"),
        (["ring", "--root", "2"], "expected no root, because all_reduce has none; found 2"),
        (["choice", "--axes", "dp=2"], "--axes belongs to `hocket show mesh`; found 'choice'"),
        (["choice", "--root", "3"], "--root belongs to algorithms; found 'choice'"),
        (["mesh", "--axes", "dp=2", "-n", "5"], "--ranks belongs to algorithms, `hocket show choice` and"),
        (["mesh", "--axes", "dp=2", "--order", "rank"], "--order belongs to `hocket show choice`"),
        (["mesh", "--axes", "dp=2", "--collective", "all_reduce"], "--collective belongs to algorithms and"),
        (["topology", "--topology", "ring:4", "-n", "3"], "--ranks belongs to algorithms, `hocket show choice` and"),
    ],
)
def test_an_option_that_would_change_nothing_is_refused(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", *arguments]) == 2
    printed = capsys.readouterr()
    assert words in printed.err and not printed.out


@pytest.mark.parametrize("root", [0, 3])
def test_a_rooted_collective(root: int, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = show(capsys, "binomial", "--collective", "broadcast", "-n", "4", "--root", str(root))
    assert code == 0
    assert text.startswith(f"broadcast binomial, 4 ranks, root {root}\n")


@pytest.mark.parametrize(("collective", "name"), ALGORITHMS)
def test_every_algorithm_can_be_shown(collective: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    allowed = [num_ranks for num_ranks in (1, 2, 4, 5) if ALGORITHMS[collective, name].allows(num_ranks)]
    assert allowed
    for num_ranks in allowed:
        arguments = (name, "--collective", collective, "-n", str(num_ranks))
        code, text = show(capsys, *arguments)
        assert code == 0 and text.startswith(f"{collective} {name}, {num_ranks} rank")
        assert "start " in text and text.endswith("to check law 3, use hocket verify\n")
    code, text = show(capsys, *arguments, "--json")
    shown = json.loads(text)
    assert code == 0 and len(shown["steps"]) == shown["num_steps"]
    assert (shown["collective"], shown["name"], shown["breach"]) == (collective, name, None)
    assert shown["laws"] == [1, 2, 4, 5]


def test_json_has_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    _, text = show(capsys, "ring", "--collective", "all_gather", "-n", "2", "--json")
    shown = json.loads(text)
    assert [(row["src"], row["dst"], row["src_chunk"], row["reduce"]) for row in shown["steps"][0]] == [
        (0, 1, 0, False),
        (1, 0, 1, False),
    ]


# --- hocket show choice --------------------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory without a tuner file, an environment that fixes nothing, and four cores."""
    for name in ("HOCKET_ALGO", "HOCKET_TUNER_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cores, "own_cores", lambda: {"cores": b"\x0f", "quota": None})
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_table_of_the_choice(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = show(capsys, "choice")
    assert code == 0
    lines = [line.split() for line in text.splitlines()]
    assert lines[0] == ["order", "collective", "cores", "ranks", "size", "algorithm"]
    two = [["up", "to", "2", "up", "to", "8", "KiB", "direct"], ["up", "to", "2", "any", "direct_two_shot"]]
    more = [["any", "up", "to", "32", "KiB", "direct"], ["any", "any", "direct_two_shot"]]
    assert lines[1:14] == [
        ["fast", "all_reduce", "shared", *two[0]],
        two[1],
        ["up", "to", "4", "up", "to", "16", "KiB", "direct"],
        ["up", "to", "4", "up", "to", "64", "KiB", "parameter_server"],
        ["up", "to", "4", "any", "direct_two_shot"],
        ["up", "to", "8", "up", "to", "2", "KiB", "direct"],
        ["up", "to", "8", "up", "to", "4", "MiB", "parameter_server"],
        *more,
        ["one", "each", *two[0]],
        two[1],
        *more,
    ]
    reduce = lines.index(["reduce", "shared", "up", "to", "4", "up", "to", "2", "MiB", "binomial"])
    assert lines[reduce + 1 : reduce + 6] == [
        ["up", "to", "8", "any", "direct"],
        ["any", "any", "binomial"],
        ["one", "each", "up", "to", "4", "up", "to", "2", "MiB", "binomial"],
        ["up", "to", "4", "any", "direct"],
        ["any", "any", "binomial"],
    ]
    assert ["rank", "all_reduce", "shared", *two[0]] in lines
    assert ["reduce", "any", "any", "binomial"] in lines
    assert '"shared" is for jobs whose ranks share cores, "one each" for all others' in text
    assert ["on", "hosts", "up", "to", "2", "hosts", "up", "to", "32", "KiB", "hierarchical_leaders"] in lines
    assert 'for ranks on 2 or more hosts the lines "on hosts" go first' in text
    assert "--ranks N shows what runs in this environment" in text


def test_the_table_of_one_order_and_collective(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, text = show(capsys, "choice", "--order", "invariant", "--json")
    choices = json.loads(text)["choices"]
    assert {line["order"] for line in choices} == {"invariant"}
    assert {line["collective"] for line in choices} == set(COLLECTIVES)
    _, text = show(capsys, "choice", "--order", "invariant", "--collective", "all_reduce", "--json")
    choices = json.loads(text)["choices"]
    assert not any(line["several_hosts"] for line in choices), "flat ones keep the tree"
    found = [(line["max_ranks"], line["max_bytes"], line["algorithm"]) for line in choices]
    assert found == [(2, 4 << 20, "direct"), (None, 4 << 10, "tree"), (None, None, "halving_doubling")]
    assert json.loads(text)["shares_cores"] is None
    assert all(line["shares_cores"] is None for line in json.loads(text)["choices"])
    _, text = show(capsys, "choice", "--order", "fast", "--collective", "reduce", "--json")
    choices = json.loads(text)["choices"]
    assert [line["shares_cores"] for line in choices if not line["several_hosts"]] == [True] * 3 + [False] * 3
    on_hosts = [(line["max_hosts"], line["max_bytes"]) for line in choices if line["several_hosts"]]
    assert on_hosts == [(2, None), (8, 8 << 10), (None, 32 << 10), (None, None)]


def test_the_orders_are_those_of_the_choice() -> None:
    from hocket.cli.show.show_choice import _ORDERS

    assert tuple(ORDERS) == _ORDERS


def test_what_runs_here(elsewhere: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (elsewhere / "hocket_tuner.conf").write_text("allreduce,1000,65536,ring,simple,-1,-1,4\n")
    monkeypatch.setenv("HOCKET_ALGO", "all_gather:^direct;allreduce:^direct_two_shot")
    arguments = ("choice", "-n", "4", "--order", "fast")
    code, text = show(capsys, *arguments, "--json")
    report = json.loads(text)
    assert code == 0 and report["num_ranks"] == 4 and report["shares_cores"] is False
    chosen = [
        (line["min_bytes"], line["max_bytes"], line["algorithm"], line["by"])
        for line in report["choices"]
        if line["collective"] in ("all_reduce", "all_gather", "reduce_scatter")
    ]
    assert chosen == [
        (0, 999, "direct", "table"),
        (1000, 65536, "ring", "tuner file"),
        (65537, None, "direct", "HOCKET_ALGO"),
        (0, None, "ring", "HOCKET_ALGO"),
        (0, None, "direct", "table"),
    ]
    _, text = show(capsys, *arguments)
    lines = [line.split() for line in text.splitlines()]
    assert ["above", "999", "B", "up", "to", "64", "KiB", "ring", "tuner", "file"] in lines
    assert ["above", "64", "KiB", "direct", "HOCKET_ALGO"] in lines
    assert "On this machine, ranks have a core each." in text


def test_what_runs_here_is_for_the_cores_that_there_are(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ranges = {}
    for num_ranks in (4, 8):
        _, text = show(
            capsys, "choice", "-n", str(num_ranks), "--order", "fast", "--collective", "all_reduce", "--json"
        )
        choices = json.loads(text)["choices"]
        assert {line["by"] for line in choices} == {"table"}
        ranges[num_ranks] = [(line["min_bytes"], line["max_bytes"], line["algorithm"]) for line in choices]
    assert ranges == {
        4: [(0, 32768, "direct"), (32769, None, "direct_two_shot")],
        8: [(0, 2048, "direct"), (2049, 4 << 20, "parameter_server"), ((4 << 20) + 1, None, "direct_two_shot")],
    }
    _, text = show(capsys, "choice", "-n", "8", "--collective", "all_reduce")
    assert "On this machine, ranks share cores." in text


def test_brackets_and_colons_in_a_name_are_printed_as_they_are(
    elsewhere: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("mine[/fast]", "my[red]:rocket:"):
        algorithm("all_reduce", name=name)(ALGORITHMS["all_reduce", "ring"])
        (elsewhere / "hocket_tuner.conf").write_text(f"allreduce,0,-1,{name},simple,-1,-1,4\n")
        code, text = show(capsys, "choice", "-n", "4", "--collective", "all_reduce")
        assert code == 0 and ["any", name, "tuner", "file"] in [line.split()[-4:] for line in text.splitlines()]


@pytest.mark.parametrize(("hosts", "given", "sizes"), [("2", ["-n", "4"], [2, 2]), ("3,1", [], [3, 1])])
def test_the_choice_on_several_hosts(
    hosts: str, given: list[str], sizes: list[int], elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("choice", "--hosts", hosts, *given, "--order", "fast", "--collective", "all_reduce")
    _, text = show(capsys, *arguments)
    assert "above 32 KiB  hierarchical_direct" in text and "The ranks are on 2 hosts." in text
    _, text = show(capsys, *arguments, "--tuner-file", "mine.csv", "--json")
    found = json.loads(text[text.index("{") :])
    assert (found["num_ranks"], found["hosts"]) == (4, sizes)
    assert [line["algorithm"] for line in found["choices"]] == ["hierarchical_leaders", "hierarchical_direct"]
    assert {(rule.num_nodes, rule.num_ranks) for rule in read("mine.csv")} == {(2, 4)}


def test_a_choice_that_is_refused_is_shown(
    elsewhere: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOCKET_ALGO", "ring")
    code, text = show(capsys, "choice", "-n", "4", "--collective", "reduce", "--order", "rank")
    assert code == 1
    assert ["rank", "reduce", "any", "none"] in [line.split() for line in text.splitlines()]
    assert "reduce: HOCKET_ALGO allows ring, which leaves no algorithm for 4 ranks" in text
    monkeypatch.setenv("HOCKET_ALGO", "rnig")
    assert main(["show", "choice", "-n", "4"]) == 2
    assert "hocket show: HOCKET_ALGO: expected an algorithm" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["rnig"], "found 'rnig'; did you mean 'ring'? Expected an algorithm, one of "),
        (["ring", "--collective", "broadcast"], "expected an algorithm for broadcast, one of binomial, "),
        (["ring", "-n", "0"], "expected at least 1 rank"),
        (["binomial", "--root", "4"], "expected a root from 0 to 3"),
        (["no_such_file.py"], "no_such_file.py"),
        (["ring", "-n", "99999999"], "ranks: expected at most 65536 for a picture, because "),
        (["choice", "-n", "0"], "ranks: expected at least 1, found 0"),
        (["choice", "--hosts", "2"], "hosts: expected ranks (--ranks), which 2 hosts have together; found none"),
        (["choice", "--hosts", "3,2", "-n", "4"], "or numbers of ranks whose sum is 4; found (3, 2)"),
        (["choice", "--hosts", "5", "-n", "4"], "hosts: expected a number of hosts, at most one for each rank, or"),
        (["ring", "--hosts", "2"], "--hosts belongs to `hocket show choice`; found 'ring'"),
        (["choice", "-n", "9" * 30], "ranks: expected at most 1024 on one host; found 999"),
        (["choice", "-n", "2", "--tuner-file", "/nonexistent/x"], "expected an existing folder for /nonexistent/x"),
        (["choice", "-n", "2", "--tuner-file", "/dev/full"], "found '/dev/full': No space left on device"),
        (["choice", "--collective", "scatter_brain"], "expected a collective"),
    ],
)
def test_bad_requests(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", *arguments]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["show", "ring", "-n", "16"], ["verify", "ring", "--ranks", "2"]])
def test_a_reader_that_goes_away_is_no_error(arguments: list[str]) -> None:
    program = [sys.executable, "-m", "hocket", *arguments]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_the_choice_is_written_as_a_tuner_file(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = show(capsys, "choice", "--ranks", "4", "--order", "invariant", "--tuner-file", "mine.csv")
    assert code == 0
    rules = read("mine.csv")
    assert {rule.collective for rule in rules} == set(COLLECTIVES) and all(rule.num_ranks == 4 for rule in rules)
    for num_bytes in (1, 4 << 10, (4 << 10) + 1, 1 << 30):
        for collective in COLLECTIVES:
            expected = choose(collective, 4, num_bytes, "invariant")
            assert choose(collective, 4, num_bytes, "invariant", Policy(rules)) == expected
    code, _ = show(capsys, "choice", "--tuner-file", "mine.csv")
    assert code != 0


@pytest.mark.parametrize("num_ranks", [4, 8])
def test_a_tuner_file_says_what_the_cores_here_decide(
    num_ranks: int, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _ = show(capsys, "choice", "-n", str(num_ranks), "--order", "fast", "--tuner-file", "mine.csv")
    assert code == 0
    rules, table = read("mine.csv"), Policy(shares_cores=num_ranks > 4)
    for num_bytes in (1, 3 << 10, 40 << 10, 1 << 20, 1 << 30):
        expected = choose("all_reduce", num_ranks, num_bytes, "fast", table)
        assert choose("all_reduce", num_ranks, num_bytes, "fast", Policy(rules)) == expected
