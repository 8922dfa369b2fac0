"""PyTorch's schedule files: tables survive the way there and back, and are PyTorch's own, line by line."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from hocket.errors import VerifyError
from hocket.training.pipeline import (
    SCHEDULES,
    PipelineTable,
    build_table,
    read_torch_csv,
    verify_table,
    write_torch_csv,
)
from tests.training.pipeline.pipeline_world import World, operations_of

NAMES = [name for name in SCHEDULES if name != "dualpipe"]
SIZES = [(1, 3), (2, 5), (3, 7), (4, 8)]


def lines_of(table: PipelineTable, path: Path) -> list[list[str]]:
    write_torch_csv(table, path)
    return [line.split(",") for line in path.read_text().splitlines()]


def test_dualpipev_is_the_file_in_the_tests_of_pytorch(tmp_path: Path) -> None:
    """The digest is that of test/distributed/pipelining/artifacts/dualpipev_4rank_10mb.csv of PyTorch."""
    write_torch_csv(build_table("dualpipev", 4, 10), tmp_path / "table.csv")
    digest = hashlib.sha256((tmp_path / "table.csv").read_bytes()).hexdigest()
    assert digest == "16ce4a29936e4c5ad774098add32489b4937942e3f5ab0108f17d2826b184529"


def orders_of_torch(kind: str, p: int, m: int, v: int) -> list[list[str]]:
    """The cells of a schedule of PyTorch, without the model that its constructor asks for."""
    from torch.distributed.pipelining import schedules

    schedule = object.__new__(getattr(schedules, kind))
    rounds = max(1, m // p)
    settings = {
        "pp_group_size": p,
        "n_local_stages": v,
        "_stages": [None] * v,
        "_num_stages": p * v,
        "num_stages": p * v,
        "_n_microbatches": m,
        "number_of_rounds": rounds,
        "microbatches_per_round": m // rounds,
    }
    for name, value in settings.items():
        setattr(schedule, name, value)
    orders = [schedule._calculate_single_rank_operations(rank) for rank in range(p)]
    return [[str(action) for action in order if action is not None] for order in orders]


@pytest.mark.parametrize("p", [1, 2, 3, 4, 6])
def test_orders_are_those_of_pytorch(p: int, tmp_path: Path) -> None:
    cases = [("dualpipev", "ScheduleDualPipeV", 2 * p + extra, 2) for extra in (0, 1, 5)]
    cases += [("zbv", "ScheduleZBVZeroBubble", m, 2) for m in (1, 2, 2 * p - 1, 2 * p, 3 * p + 1)]
    cases += [("1f1b-interleaved", "ScheduleInterleaved1F1B", k * p, v) for k in (1, 2, 3) for v in (1, 2, 3)]
    for name, kind, m, v in cases:
        table = build_table(name, p, m, v)
        assert lines_of(table, tmp_path / "table.csv") == orders_of_torch(kind, p, m, v), (name, p, m, v)


@pytest.mark.parametrize("messages", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_tables_survive_the_way_there_and_back(name: str, messages: bool, tmp_path: Path) -> None:
    for p, m in SIZES:
        table = build_table(name, p, m)
        write_torch_csv(table, tmp_path / "one.csv", messages=messages)
        again = read_torch_csv(tmp_path / "one.csv")
        assert operations_of(again) == operations_of(table)
        assert again.num_microbatches == m and again.name == "one"
        np.testing.assert_array_equal(again.placement, table.placement)
        assert World(again).runs_well()
        expected = (0, 0) if messages else verify_table(table).fewest_messages
        assert verify_table(again).fewest_messages == expected
        write_torch_csv(again, tmp_path / "two.csv", messages=messages)
        assert (tmp_path / "two.csv").read_text() == (tmp_path / "one.csv").read_text()


def test_messages_and_reductions_have_pytorchs_words(tmp_path: Path) -> None:
    write_torch_csv(build_table("zb-h1", 2, 1), tmp_path / "table.csv", messages=True)
    assert (tmp_path / "table.csv").read_text() == (
        "0F0,0SEND_F0,0RECV_B0,0I0,0W0,0REDUCE_GRAD\n1RECV_F0,1F0,1I0,1SEND_B0,1W0,1REDUCE_GRAD\n"
    )


@pytest.mark.parametrize("name", NAMES)
def test_pytorch_reads_what_hocket_writes(name: str, tmp_path: Path) -> None:
    from torch.distributed.pipelining import schedules

    table = build_table(name, 4, 8)
    write_torch_csv(table, tmp_path / "table.csv", messages=True)
    actions = {
        rank: [schedules._Action.from_str(cell) for cell in line.split(",") if "REDUCE" not in cell]
        for rank, line in enumerate((tmp_path / "table.csv").read_text().splitlines())
    }
    home = table.placement[0].tolist()
    if name != "dualpipev":  # its simulator knows no pairs
        schedules._simulate_comms_compute(actions, home.__getitem__, table.num_stages)  # raises if a rank cannot go on
    compute = {rank: [action for action in line if action.is_compute_op] for rank, line in actions.items()}
    assert schedules._validate_schedule(compute, 4, table.num_stages, 8) == dict(enumerate(home))


@pytest.mark.parametrize(
    ("kind", "p", "m", "v"),
    [
        ("ScheduleInterleaved1F1B", 4, 6, 2),  # a size for which PyTorch takes another order than Megatron
        ("ScheduleInterleavedZeroBubble", 4, 8, 2),
        ("ScheduleLoopedBFS", 3, 4, 2),
        ("ScheduleZBVZeroBubble", 3, 6, 2),
    ],
)
def test_tables_of_pytorch_are_proved_with_the_messages_that_it_adds(
    kind: str, p: int, m: int, v: int, tmp_path: Path
) -> None:
    from torch.distributed.pipelining import schedules

    lines = orders_of_torch(kind, p, m, v)
    path = tmp_path / "theirs.csv"
    path.write_text("".join(",".join(line) + "\n" for line in lines))
    table = read_torch_csv(path)
    proof = verify_table(table)
    assert World(table, proof.fewest_messages.tagged).runs_well()
    home = table.placement[0].tolist()
    actions = {rank: [schedules._Action.from_str(cell) for cell in line] for rank, line in enumerate(lines)}
    lowered = schedules._add_send_recv(actions, home.__getitem__, p * v)
    path.write_text("".join(",".join(map(str, lowered[rank])) + "\n" for rank in range(p)))
    assert verify_table(read_torch_csv(path)).fewest_messages == (0, 0)


def test_empty_cells_and_words_about_weights_are_read_over(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("0UNSHARD,0F0, ,,0B0,0REDUCE_GRAD,0RESHARD\n,1F0,1B0\n")
    table = read_torch_csv(path)
    assert operations_of(table) == [[("F", 0, 0, 0), ("G", 0, 0, 0)], [("F", 1, 0, 0), ("G", 1, 0, 0)]]
    assert table.messages is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0,0B0\n1F0,1X0\n", r"table\.csv: line 2, cell 2: expected an operation such as .* found '1X0'"),
        ("0F0,(0F1;0B0\n", "line 1, cell 2: expected an operation"),
        ("0F0,(0F1;0SEND_F0)OVERLAP_F_B\n", "line 1, cell 2: .* found '0SEND_F0'"),
        ("0F99999999999,0B0\n", "line 1, cell 1: expected an operation"),
        ("0F0,2F0,2B0,0B0\n", r"expected stages from 0 without a gap.* found stages \[0, 2\] on ranks \[0\]"),
        ("0F0,0B0\n\n", r"at least one on each of 2 ranks, found stages \[0\] on ranks \[0\]"),
        ("", "expected stages from 0 without a gap, at least one"),
        ("0F0,0SEND_F1,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", "line 1: 0SEND_F1 belongs to no operation"),
        ("0F0,(0B0;1F0)OVERLAP_F_B,1B0\n", "overlapped pair to be F and then G of two stages, found G .* and F"),
    ],
)
def test_a_wrong_cell_is_named(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_torch_csv(tmp_path / "table.csv")


@pytest.mark.parametrize(
    ("text", "law"),
    [
        ("0F0,0F1,0B0,0B1\n1F1,1F0,1B0,1B1,0F0\n", 1),
        ("0F0,0F999999999,0B0\n1F0,1B0\n", 1),
        ("0B0,0F0\n1F0,1B0\n", 2),
        ("0F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", 3),
        ("0F0,0RECV_B0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", 3),
    ],
)
def test_a_file_that_breaks_a_law_is_read_and_then_refused(text: str, law: int, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(text)
    with pytest.raises(VerifyError, match=f"law {law}"):
        verify_table(read_torch_csv(tmp_path / "table.csv"))


def test_a_stage_on_two_ranks_is_no_file_for_pytorch(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"dualpipe has each stage on two ranks.*write dualpipev instead"):
        write_torch_csv(build_table("dualpipe", 2, 4), tmp_path / "table.csv")
