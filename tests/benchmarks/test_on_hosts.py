"""The commands of benchmarks/hosts.py --hosts: each rank is where it should be, and knows what it needs."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import hosts
from comparison import contenders, on_hosts, report
from comparison.contenders import DEFAULT, settings
from comparison.results import Row, Run


class Host:
    def __init__(self, name: str) -> None:
        self.name = name
        self.environment = {"KEEPERS": "all"}

    def command(self, argv: Sequence[str]) -> list[str]:
        return [f"on {self.name}", *argv]


class Lab:
    hosts = (Host("a"), Host("b"))
    agent = Path("/agent")


def commands(group: str, num_ranks: int) -> tuple[list[list[str]], dict[str, str]]:
    (setting, *_) = settings(group, ["hosts"])
    return on_hosts.commands(group, setting, num_ranks, Path("/x/address"), "/x/store", Path("/bin/python"), Lab())


def test_ranks_of_hocket_know_where_they_are_and_where_rank_0_is() -> None:
    lines, environment = commands("hocket", 4)
    assert environment["KEEPERS"] == "all"
    said = [dict(re.findall(r"(HOCKET_\w+)=(\S+)", " ".join(line))) for line in lines]
    assert [line[0] for line in lines] == ["on a", "on a", "on b", "on b"]
    assert [each["HOCKET_RANK"] for each in said] == ["0", "1", "2", "3"]
    assert [each["HOCKET_LOCAL_RANK"] for each in said] == ["0", "1", "0", "1"]
    assert {each["HOCKET_SIZE"] + each["HOCKET_LOCAL_SIZE"] for each in said} == {"42"}
    assert {each["HOCKET_ADDRESS"] for each in said} == {"a:29500"}
    (key,) = {each["HOCKET_KEY"] for each in said}
    assert len(bytes.fromhex(key)) == 32
    program, arguments = lines[3][-8:-3], lines[3][-3:]
    assert program == ["/bin/python", "-m", "comparison.rank", "hocket", "/x/address"]
    assert arguments == ["3", "4", "/x/store"]


def test_ranks_of_gloo_use_the_interface_between_the_hosts() -> None:
    lines, environment = commands("gloo", 2)
    assert [line[0] for line in lines] == ["on a", "on b"]
    assert environment["GLOO_SOCKET_IFNAME"] == "eth0"


@pytest.mark.parametrize("group", ["openmpi", "mpich"])
def test_an_mpiexec_starts_its_ranks_on_both_hosts(group: str) -> None:
    (line,), environment = commands(group, 8)
    text = " ".join(line)
    assert text.startswith("on a /bin/mpiexec ") and "/agent" in text and "a:4,b:4" in text and " -n 8 " in text
    assert ("ppr:4:node" in text) == (group == "openmpi")  # its default policy fills one host
    assert "MPIR_CVAR_NOLOCAL" not in environment


def test_only_hosts_change_the_commands() -> None:
    usual, _ = contenders.commands("gloo", DEFAULT, 2, Path("/x/address"), "/x/store", Path("/bin/python"))
    assert [line[:3] for line in usual] == [["/bin/python", "-m", "comparison.rank"]] * 2


def test_a_rank_on_the_wrong_host_is_named() -> None:
    assert on_hosts.misplaced(["a", "a", "b", "b"], Lab()) == ""
    assert on_hosts.misplaced(["a", "a"], Lab()) == "ranks are on a, a, not on a, b"
    assert on_hosts.misplaced(["somewhere"] * 2, None) == ""


def test_the_table_of_hosts_has_the_bound_and_the_raw_exchange() -> None:
    made = Row("all_reduce", 1_000_000, "float32", 4)
    for name, seconds in (("hocket", 0.02), ("gloo", 0.04), ("raw exchange", 0.01)):
        made.note(name, "touched", seconds)
    other = Row("broadcast", 8, "float32", 2)
    other.note("gloo", "touched", 1e-3)
    run = Run("a machine", rows=[made, other], absent={"hocket, 2 ranks": "a line / the reason"})
    text = hosts.table(run, ["gloo"], hosts.Link("1gbit", 0.001))
    assert "|all_reduce 1000000 B, 2 x 2|20000.00|40000.00|10000.00|9000.00|-|-|2.00|2.00|" in text
    assert "|broadcast 8 B, 2 x 1|-|1000.00|-|-|-|-|-|-|" in text
    assert "geometric mean of 1 cells: 2.00" in text and text.endswith("absent: hocket, 2 ranks: the reason")


def test_of_more_hosts_each_sends_more_and_nobody_sends_raw() -> None:
    made = Row("all_reduce", 1_000_000, "float32", 6)
    made.note("hocket", "touched", 0.02)
    seconds = {count: hosts.Link("1gbit", num_hosts=count).bound_seconds(made) for count in (2, 3, 4)}
    assert seconds == {2: pytest.approx(8e-3), 3: pytest.approx(8e-3 * 4 / 3), 4: pytest.approx(8e-3 * 3 / 2)}

    class Three(Lab):
        hosts = (Host("a"), Host("b"), Host("c"))

    assert hosts.raw_exchange(Path("no program"), made, hosts.QUICK, Three()) is None
    text = hosts.table(Run(rows=[made]), ["gloo"], hosts.Link("1gbit", num_hosts=3))
    assert "|all_reduce 1000000 B, 3 x 2|20000.00|-|-|10666.67|-|-|-|-|" in text
    lines, _ = on_hosts.commands("hocket", DEFAULT, 6, Path("/x/address"), "/x/store", Path("/bin/python"), Three())
    assert [line[0] for line in lines] == ["on a"] * 2 + ["on b"] * 2 + ["on c"] * 2


def lines_of_goals(rows: list[Row], link: hosts.Link | None) -> list[str]:
    return [
        line[:8].strip() for line in report.goal_lines(hosts.judged(Run(rows=rows), hosts.PEERS, link)).splitlines()
    ]


def test_the_goals_between_two_hosts_are_judged() -> None:
    layouts = {per_host: Row("all_reduce", 64 << 20, "float32", 2 * per_host) for per_host in (1, 2, 4)}
    bound = hosts.Link("1gbit").bound_seconds(layouts[1])
    assert bound is not None
    for per_host, times in {1: 1.0, 2: 1.07, 4: 1.2}.items():
        layouts[per_host].note("hocket", "touched", bound * times)
        layouts[per_host].note("flat ring", "touched", bound * 1.6)
        layouts[per_host].note("raw exchange", "touched", bound * 0.96)
        layouts[per_host].note("prediction", "touched", bound)
    small = Row("all_reduce", 8, "float32", 4)
    small.note("hocket", "touched", 190e-6)
    found = lines_of_goals([small, *layouts.values()], hosts.Link("1gbit"))
    assert found == ["reached"] * 3 + ["MISSED", "reached", "MISSED"], "2 x 4: 1.33 of the ring, and 17 % off"
    assert lines_of_goals([small], hosts.Link("1gbit", 0.001)) == ["reached", "unknown", "unknown"]
    assert lines_of_goals([small], hosts.Link("1gbit", num_hosts=3)) == ["unknown"], "only the prediction has a goal"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("--rate 1gbit", "are those of --hosts"),
        ("--hosts 2", "--hosts needs --rate"),
        ("--hosts 5 --rate 1gbit", "expected a whole number from 2 to 4"),
        ("--hosts 3 --rate 1gbit --delay 0.001", "--delay is that of a link between two hosts, but --hosts is 3"),
        ("--hosts 2 --rate 1gb", "expected a rate, such as 1gbit"),
        ("--hosts 2 --rate 1gbit --delay 1ms", "expected seconds from 0 to 1"),
    ],
)
def test_a_wrong_command_line_is_one_line(
    words: str, error: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["hosts.py", *words.split()])
    with pytest.raises(SystemExit):
        hosts.parsed()
    assert error in capsys.readouterr().err
