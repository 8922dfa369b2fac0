"""Tuner files in NCCL's format: read, written, refused."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hocket.algorithms import ALGORITHMS, algorithm
from hocket.runtime import Rule
from hocket.runtime.choice.tuner_file import read, read_configured, update, write

EXAMPLE = """\
# As NCCL's example tuner describes it; blank lines and comments mean nothing.

allreduce,0,65536,tree,simple,2,1,-1,-1,1
  allreduce , 65537 , 1048576 , ring , LL128 , 4 , 4 , 32 , 1
AllReduce,1048577,-1,ring,ll,-1,-1,-1   # to the end
broadcast,0,32768,tree,simple,-1,1,-1,-1,1
reduce,0,4294967295,tree,simple,-1,-1,-1
alltoall,0,-1,pairwise,simple,-1,-1,16
all_reduce,0,-1,direct_two_shot,simple,-1,-1,-1
"""
RULES = (
    Rule("all_reduce", 0, 65536, "tree", num_nodes=1, channels=2, registered_buffers=1),
    Rule("all_reduce", 65537, 1048576, "ring", 4, 32, "ll128", channels=4, num_pipe_ops=1),
    Rule("all_reduce", 1048577, -1, "ring", protocol="ll"),
    Rule("broadcast", 0, 32768, "binomial", num_nodes=1, registered_buffers=1),
    Rule("reduce", 0, 4294967295, "binomial"),
    Rule("all_to_all", 0, -1, "pairwise", num_ranks=16),
    Rule("all_reduce", 0, -1, "direct_two_shot"),
)


def test_what_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tuner.conf"
    file.write_text(EXAMPLE)
    assert read(file) == RULES
    assert capsys.readouterr().err == ""
    file.write_text("# nothing\n")
    assert read(file) == ()


def test_what_only_nccl_has_is_left_out_with_one_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tuner.conf"
    file.write_text(
        "allreduce,0,65536,collnet_direct,simple,2,1,-1\n"
        "allreduce,0,65536,ring,simple,2,1,-1\n"
        "allgather,0,65536,NVLS_TREE,simple,2,1,-1\n"
        "broadcast,0,65536,ring,simple,2,1,-1\n"
    )
    assert [rule.algorithm for rule in read(file)] == ["ring"]
    told = capsys.readouterr().err
    assert told == (
        f"hocket: {file}: left out lines with algorithms that only NCCL has: line 1 (collnet_direct for "
        "all_reduce), line 3 (NVLS_TREE for all_gather), line 4 (ring for broadcast)\n"
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "allreduce,0,1,ring,simple,-1,-1",
            r"expected 8 to 10 fields, collective,min_bytes,.*; found 7 in 'allreduce,0",
        ),
        ("allreduce,0,1,ring,simple,-1,-1,-1,-1,-1,-1", "expected 8 to 10 fields, .*; found 11"),
        ("allredcue,0,1,ring,simple,-1,-1,-1", "collective: expected one of allreduce, .*; found 'allredcue'"),
        (",0,1,ring,simple,-1,-1,-1", "collective: expected .*; found ''"),
        ("allreduce,many,1,ring,simple,-1,-1,-1", "min_bytes: expected a number of at least 0; found 'many'"),
        ("allreduce,-1,1,ring,simple,-1,-1,-1", "min_bytes: expected a number of at least 0; found '-1'"),
        ("allreduce,0,1k,ring,simple,-1,-1,-1", "max_bytes: expected a number of at least -1; found '1k'"),
        ("allreduce,0,-2,ring,simple,-1,-1,-1", "max_bytes: expected a number of at least -1; found '-2'"),
        ("allreduce,9,8,ring,simple,-1,-1,-1", "max_bytes: expected -1 or at least min_bytes, 9; found '8'"),
        (
            "allreduce,0,1,rnig,simple,-1,-1,-1",
            "algorithm: expected an algorithm for all_reduce, one of bidirectional_ring, .*, tree; found 'rnig'",
        ),
        ("broadcast,0,1,pairwise,simple,-1,-1,-1", "algorithm: expected an algorithm for broadcast, one of"),
        ("allreduce,0,1,ring,quick,-1,-1,-1", "protocol: expected one of ll, ll128, simple; found 'quick'"),
        ("allreduce,0,1,ring,simple,,-1,-1", "channels: expected a number of at least -1; found ''"),
        ("allreduce,0,1,ring,simple,-1,1.5,-1", "nNodes: expected a number of at least -1; found '1.5'"),
        ("allreduce,0,1,ring,simple,-1,-1,--1", "nRanks: expected a number of at least -1; found '--1'"),
        ("allreduce,0,1,ring,simple,-1,-1,-1,²", "numPipeOps: expected a number of at least -1; found '²'"),
        ("allreduce,0,1,ring,simple,-1,-1,-1,-1,x", "regBuff: expected a number of at least -1; found 'x'"),
    ],
)
def test_a_line_that_cannot_be_understood_names_file_line_and_field(line: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "tuner.conf"
    file.write_text(f"# One comment.\n\n{line}\n")
    with pytest.raises(ValueError, match=rf"^{file}, line 3: {message}"):
        read(file)


def test_files_that_are_no_tuner_files(tmp_path: Path) -> None:
    file = tmp_path / "tuner.conf"
    file.write_bytes(b"allreduce\xff")
    with pytest.raises(ValueError, match=rf"^{file}: expected a tuner file in UTF-8"):
        read(file)
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "other.conf")


def test_which_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_configured({}) == ()
    write("hocket_tuner.conf", RULES[:1])
    write("other.conf", RULES[1:2])
    assert read_configured({}) == RULES[:1]
    assert read_configured({"HOCKET_TUNER_CONFIG_FILE": "other.conf"}) == RULES[1:2]
    assert read_configured({"HOCKET_TUNER_CONFIG_FILE": ""}) == ()
    with pytest.raises(ValueError, match=r"expected a tuner file, found no file 'missing\.conf'; correct"):
        read_configured({"HOCKET_TUNER_CONFIG_FILE": "missing.conf"})


numbers = st.integers(-1, 2**63)
rules = st.builds(
    lambda key, least, more, *rest: Rule(key[0], least, -1 if more is None else least + more, key[1], *rest),
    st.sampled_from(sorted(ALGORITHMS)),
    st.integers(0, 2**63),
    st.none() | st.integers(0, 2**62),
    numbers,
    numbers,
    st.sampled_from(("ll", "ll128", "simple")),
    numbers,
    numbers,
    st.integers(-1, 1),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.lists(rules, max_size=5))
def test_what_is_written_is_read_back(tmp_path: Path, some: list[Rule]) -> None:
    file = tmp_path / "tuner.conf"
    write(file, some)
    assert read(file) == tuple(some)


def test_the_name_of_nccl_yields_to_an_algorithm_of_that_name(tmp_path: Path) -> None:
    file = tmp_path / "tuner.conf"
    rule = Rule("broadcast", 0, -1, "binomial")
    write(file, [rule])
    assert ",tree," in file.read_text() and read(file) == (rule,)
    algorithm("broadcast", name="tree", chunks=lambda p: 1)(ALGORITHMS["broadcast", "binomial"].write)
    write(file, [rule])
    assert ",binomial," in file.read_text() and read(file) == (rule,)


def test_what_is_written_is_what_nccls_example_tuner_reads(tmp_path: Path) -> None:
    """By its rules: at most 255 characters a line, # in the first column, 8 to 10 fields, its names in lower case."""
    file = tmp_path / "tuner.conf"
    known = [rule for rule in RULES if rule.algorithm != "direct_two_shot" and rule.collective != "all_to_all"]
    write(file, known)
    lines = file.read_text().splitlines()
    assert all(len(line) < 256 for line in lines)
    fields = [line.split(",") for line in lines if line and not line.startswith("#")]
    assert len(fields) == len(known) and all(8 <= len(one) <= 10 and "" not in one for one in fields)
    assert {one[0] for one in fields} <= {"broadcast", "reduce", "allgather", "reducescatter", "allreduce"}
    assert {one[3] for one in fields} == {"tree", "ring"}
    assert {one[4] for one in fields} <= {"ll", "ll128", "simple"}
    # strtoull reads -1 as the largest size: right for the upper bound, but not for the lower bound.
    assert all(int(one[1]) >= 0 for one in fields)
    with_optional = [",".join(one) for one in fields][1]
    assert with_optional == "allreduce,65537,1048576,ring,ll128,4,4,32,1,-1"


def test_lines_for_several_hosts_stay_when_one_host_is_tuned(tmp_path: Path) -> None:
    file = tmp_path / "tuner.conf"
    several, one = (Rule("all_reduce", 0, -1, "ring", num_nodes=nodes, num_ranks=4) for nodes in (2, 1))
    write(file, [several, one, replace(one, num_nodes=-1)])
    new = replace(one, algorithm="tree")
    assert update(file, [new], {("all_reduce", 4)}) == [several]
    assert read(file) == (new, several)
