"""MSCCL++ plans in and out: plans do what schedules say, schedules what plans say, and a refusal says why."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hocket.algorithms import ALGORITHMS
from hocket.algorithms.registry import Algorithm
from hocket.errors import ScheduleError, VerifyError
from hocket.schedule import Schedule, compose, mscclpp, verify
from hocket.schedule.msccl.writer import program_of
from hocket.schedule.mscclpp.execution_plan import (
    MAX_CHANNELS,
    MAX_OPS,
    SPELLINGS_IN_PLANS,
    format_plan,
    parse_plan,
)
from hocket.schedule.mscclpp.plan_writer import plan_of
from tests.schedule.mscclpp_plans import execution_plan, expected, run_plan
from tests.schedule.plan_machine import Stuck
from tests.schedule.random_schedules import random_schedule
from tests.schedule.test_msccl import folds_of_many, rows, transfers

BUILT_IN = {key: one for key, one in ALGORITHMS.items() if one.collective in SPELLINGS_IN_PLANS}


def read(plan: dict[str, Any], alike: Schedule | None = None) -> Schedule:
    """Returns the schedule of a plan that is right: proved, run, and the same when it is written and read again.

    `alike` computes the same in chunks that thread blocks do not cut.
    """
    schedule = mscclpp.read(json.dumps(plan))
    verify(schedule)
    alike = alike or schedule
    for seed in range(4):
        assert run_plan(plan, alike, seed) == expected(alike, 2)
    again = mscclpp.read(mscclpp.write(schedule))
    assert (transfers(again), again.root) == (transfers(schedule), schedule.root)
    return schedule


# -- writing


@pytest.mark.parametrize("one", BUILT_IN.values(), ids=map("-".join, BUILT_IN))
def test_a_written_plan_computes_the_collective_and_is_read_again(one: Algorithm) -> None:
    written = 0
    for p in filter(one.allows, (1, 2, 3, 4, 6)):
        for root in {0, p - 1} if one.build(p).kind.rooted and p < 4 else {0}:
            schedule = one.build(p, root)
            try:
                text = mscclpp.write(schedule, one.name)
            except ScheduleError as error:
                assert "and rounds once" in str(error)
                continue
            written += 1
            assert run_plan(json.loads(text), schedule, p) == expected(schedule, 2)
            found = mscclpp.read(text)
            trees = not folds_of_many(schedule)
            assert transfers(found, trees=trees) == transfers(schedule, trees=trees)
            assert verify(found).labels == verify(schedule).labels
            again = mscclpp.read(mscclpp.write(found))
            assert (transfers(again), again.num_steps) == (transfers(found), found.num_steps)
            if p > 1 and one.name == "ring":
                assert rows(found) == rows(schedule)
    assert written


@pytest.mark.parametrize("early", range(4))
def test_any_schedule_is_what_its_plan_does(early: int) -> None:
    """Random schedules without a purpose, with all dependencies that their shape allows."""
    for seed in range(early, 240, 4):
        schedule = random_schedule(seed)
        if schedule.collective in SPELLINGS_IN_PLANS:
            text = format_plan(plan_of(program_of(schedule, "random")))
            want = expected(schedule, 2)
            assert run_plan(json.loads(text), schedule, seed) == want, seed
            assert expected(mscclpp.read(text), 2) == want, seed


def mutants(plan: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the plan without one op of its second GPU, and without one signal together with the wait for it."""
    for tb, block in enumerate(plan["gpus"][1]["threadblocks"]):
        for i, op in enumerate(block["ops"]):
            mutant = copy.deepcopy(plan)
            del mutant["gpus"][1]["threadblocks"][tb]["ops"][i]
            yield f"tb {tb}, op {i} ({op['name']})", mutant


@pytest.mark.parametrize(
    ("key", "num_ranks"),
    [
        (("all_reduce", "ring"), 3),
        (("all_gather", "direct"), 3),
        (("all_reduce", "recursive_doubling"), 4),
        (("broadcast", "binomial"), 4),
    ],
    ids=["ring", "direct", "recursive_doubling", "binomial"],
)
def test_what_goes_wrong_in_the_machine_is_refused(key: tuple[str, str], num_ranks: int) -> None:
    schedule = ALGORITHMS[key].build(num_ranks)
    want, wrong, needless = expected(schedule, 2), [], []
    for name, mutant in mutants(json.loads(mscclpp.write(schedule))):
        try:
            bad = any(run_plan(mutant, schedule, seed) != want for seed in range(12))
        except Stuck:
            bad = True
        try:
            verify(mscclpp.read(json.dumps(mutant)))
        except (ScheduleError, VerifyError):
            wrong += [name] if bad else []
        else:
            assert not bad, name
            needless.append(name)
    assert len(wrong) > len(needless)


def test_a_call_does_not_disturb_the_call_before() -> None:
    """Without the signals with which a call begins, a GPU puts into memory that another one still uses."""
    schedule = ALGORITHMS["all_gather", "direct"].build(3)
    plan = json.loads(mscclpp.write(schedule))
    for gpu in plan["gpus"]:
        for block in gpu["threadblocks"]:
            block["ops"] = block["ops"][1:] if block["ops"][0]["name"] == "signal" else block["ops"][2:]
    assert all(run_plan(plan, schedule, seed, 1) == expected(schedule, 1) for seed in range(5))
    assert any(run_plan(plan, schedule, seed) != expected(schedule, 2) for seed in range(30))
    with pytest.raises(ScheduleError, match=r"a signal of gpu \d before .* may still be in the call before; found no"):
        mscclpp.read(json.dumps(plan))


def test_the_ring_sends_what_it_has_just_reduced() -> None:
    plan = json.loads(mscclpp.write(ALGORITHMS["all_reduce", "ring"].build(4)))
    (block,) = plan["gpus"][0]["threadblocks"]
    data = [op["name"] for op in block["ops"] if "src_buff" in op]
    assert data == ["put", "res", "res", "res", "put", "put"]  # The second round goes where it is stored.
    assert plan["gpus"][0]["scratch_chunks"] == 3


def test_limits_of_the_executor_are_kept() -> None:
    """A long chain becomes several thread blocks, which take turns by semaphores."""
    for key, p in ((("all_reduce", "ring"), 16), (("broadcast", "chain"), 16), (("all_to_all", "pairwise"), 9)):
        plan = parse_plan(mscclpp.write(ALGORITHMS[key].build(p)), "test")
        blocks = [block for gpu in plan.gpus for block in gpu.threadblocks]
        assert max(len(block.ops) for block in blocks) <= MAX_OPS
        assert max(len(one.channel_ids) for block in blocks for one in block.channels) <= MAX_CHANNELS
    assert len(parse_plan(mscclpp.write(ALGORITHMS["all_reduce", "ring"].build(16)), "test").gpus[0].threadblocks) > 2


def test_more_thread_blocks_than_a_gpu_runs_at_once_are_refused() -> None:
    with pytest.raises(ScheduleError, match=r"gpu 0: expected at most 108 thread blocks, .* same time; found 11\d"):
        mscclpp.write(ALGORITHMS["broadcast", "direct"].build(112))


def test_what_a_plan_cannot_say() -> None:
    with pytest.raises(ScheduleError, match=r"expected a collective that it has, .*, all_to_all; found gather"):
        mscclpp.write(ALGORITHMS["gather", "direct"].build(2))
    with pytest.raises(
        ScheduleError, match=r"MSCCL\+\+ plan: .* a change of rank_order: .* folds 4 operands at rank 0"
    ):
        mscclpp.write(ALGORITHMS["all_reduce", "direct"].build(4))


def test_many_chunks_are_one_op() -> None:
    schedule = compose.refine(ALGORITHMS["all_gather", "direct"].build(3), 40)
    plan = parse_plan(mscclpp.write(schedule), "test")
    assert {one.size for gpu in plan.gpus for tb in gpu.threadblocks for op in tb.ops for one in op.dst_buff} == {40}


# -- reading: structures of MSCCL++'s own plans (test/executor-tests/execution-plans, python/mscclpp/language/tests)

REDUCE_0 = "copy i2*2 > s2*2, nop, signal 0, nop, wait 0, nop, rres i0 1:s0 > i0 1:i0, get 0 1:s1 > s1, nop,"
REDUCE_0 += "res i1 s1 > i1 1:i1, nop, signal 0, nop, wait 0, nop"
REDUCE_1 = "copy i0*2 > s0*2, nop, signal 0, nop, wait 0, nop, rre i2*2 0:s2*2 > i2*2, nop, copy i2*2 > s2*2, nop,"
REDUCE_1 += "put s2*2 > 0:i2*2, nop, signal 0, nop, wait 0, nop"


def ops(text: str, more: str = "") -> list[str]:
    """Returns the ops of a text, those that move data with one word more."""
    return [op.strip() + (more if ">" in op else "") for op in text.split(",")]


def reduction() -> dict[str, Any]:
    blocks = [[(["memory 1"], ops(REDUCE_0))], [(["memory 0"], ops(REDUCE_1))]]
    return execution_plan("allreduce", (4, 4, 4), blocks)


def test_reads_and_reductions_of_remote_memory() -> None:
    schedule = read(reduction())
    assert schedule.num_scratch == 0  # What waits in scratch for one use is read at its source.
    assert verify(schedule).labels == {"same_on_all_ranks"}
    assert verify(schedule).sent == 1


def test_groups_of_thread_blocks_cut_chunks() -> None:
    """In halves of single chunks the plan is right. In halves of pairs, as in MSCCL++'s own test plan reduce_tbg.json,
    a block reads what another one has copied."""

    def plan(*texts: str) -> dict[str, Any]:
        gpus = [
            [([f"memory {1 - gpu}"], ops(text, f" tbg={part}/2")) for part in (0, 1)] for gpu, text in enumerate(texts)
        ]
        return execution_plan("allreduce", (4, 4, 4), gpus)

    single = [text.replace("copy i0*2 > s0*2", "copy i0 > s0, copy i1 > s1") for text in (REDUCE_0, REDUCE_1)]
    assert read(plan(*single), mscclpp.read(json.dumps(reduction()))).vector_chunks == 8
    with pytest.raises(
        ScheduleError, match=r"gpu 0, tb \d, op \d \(\w+\): .* no order between it and gpu 1, tb \d, op 0"
    ):
        mscclpp.read(json.dumps(plan(REDUCE_0, REDUCE_1)))


def test_ports_put_signal_and_flush() -> None:
    ready = "nop, signal@port 0, nop, wait@port 0, nop,"
    first = ready + "put@port 0 o0 > 1:o0, nop, signal@port 0, nop, flush@port 0, nop, wait@port 0, nop"
    second = ready + "pws@port 0 o1 > 1:o1, nop, flush@port 0, nop"
    back = ready + "pwsf@port 0 o2*2 > 0:o2*2, nop, wait@port 0, nop"
    gpus = [
        [(["port 1"], ops(first)), (["port 1"], ops(second))],
        [(["port 0"], ops(back)), (["port 0"], ops(ready + "wait@port 0, nop"))],
    ]
    plan = execution_plan("allgather", (2, 4, 0), gpus)
    assert rows(read(plan)) == rows(compose.refine(ALGORITHMS["all_gather", "direct"].build(2), 2))
    for tb, after in ((0, 8), (1, 6)):  # what a port may still have to read is overwritten
        some = plan["gpus"][0]["threadblocks"][tb]["ops"]
        places = ([{"type": "o", "index": index, "size": 1}] for index in (1 - tb, tb))
        some.insert(after, {"name": "copy"} | dict(zip(("src_buff", "dst_buff"), places, strict=True)))
        with pytest.raises(
            ScheduleError, match=rf"tb {tb}, op {after} \(copy\): .* no order between it and gpu 0, tb {tb}"
        ):
            mscclpp.read(json.dumps(plan))
        del some[after]
    early = copy.deepcopy(plan)  # the signal is sent by another thread, perhaps before the put
    del early["gpus"][0]["threadblocks"][0]["ops"][6]
    with pytest.raises(ScheduleError, match=r"gpu 1, the end of its call: expected it to come after gpu 0, tb 0, op 5"):
        mscclpp.read(json.dumps(early))


def packets(**more: Any) -> dict[str, Any]:
    gpus = [
        [
            (["memory 1"], ["ppkt i1 > 1:s1"]),
            (["memory 1"], ["respkt i0 s0 > i0 1:s0"]),
            ([], ["upkt s1 > i1"]),
        ],
        [
            (["memory 0"], ["ppkt i0 > 0:s0"]),
            (["memory 0"], ["recspkt i1 s1 > i1 s2 0:s1"]),
            ([], ["upkt s0 > i0"]),
        ],
    ]
    return execution_plan("allreduce", (2, 2, 3), gpus, protocol="LL", use_double_scratch_buffer=True) | more


def test_packets_need_no_signals() -> None:
    schedule = read(packets())
    assert (verify(schedule).sent, schedule.num_steps) == (1, 2)


def test_packets_are_passed_on() -> None:
    """Rank 0 adds what comes from the others; rank 1 passes the sums on to rank 2."""
    gpus = [
        [(["memory 1"], ops("repkt i0*2 s0*2 s2*2 > i0*2, nop, ppkt i0*2 > 1:s0*2"))],
        [(["memory 0", "memory 2"], ops("ppkt i0*2 > 0:s0*2, rppkt s0*2 > 2:s0*2, upkt s0*2 > i0*2"))],
        [(["memory 0"], ops("cpkt i0*2 > s4*2, rppkt s4*2 > 0:s2*2, upkt s0*2 > i0*2"))],
    ]
    plan = execution_plan("allreduce", (2, 2, 8), gpus, protocol="LL", use_double_scratch_buffer=True)
    assert verify(read(plan)).labels == {"same_on_all_ranks", "size_invariant"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('"use_double_scratch_buffer": true', '"use_double_scratch_buffer": false'), r"a signal or a packet of gpu"),
        (
            ('"type": "s", "index": 2', '"type": "s", "index": 1'),
            r"op 0 \(recspkt\): expected each packet to be written once; f",
        ),
        (
            ('"type": "s", "index": 2', '"type": "i", "index": 0'),
            r"op 0 \(recspkt\): expected packets in scratch; found",
        ),
        (
            ('"buffer_id": 0, "index": 1', '"buffer_id": 0, "index": 2'),
            r"found that these wait forever: gpu 0, tb 2, op 0",
        ),
        (
            ('"upkt"', '"copy"'),
            r"gpu 0, tb 2, op 0 \(copy\): expected only packets in scratch where a plan has packets",
        ),
        (('"memory"', '"port"'), r"op 0 \(ppkt\): expected channel_type memory; a port .*; found 'port'"),
    ],
)
def test_packets_that_are_refused(change: tuple[str, str], message: str) -> None:
    text = json.dumps(packets())
    changed = text.replace(*change) if change[0] == '"memory"' else text.replace(*change, 1)
    assert changed != text
    with pytest.raises(ScheduleError, match=message):
        mscclpp.read(changed)


def test_a_packet_from_who_does_not_listen_is_refused() -> None:
    """Rank 0 may be two calls ahead of rank 1, which sends it nothing."""
    gpus = [[(["memory 1"], ["ppkt o0 > 1:s0"])], [([], ["upkt s0 > o0"])]]
    plan = execution_plan("broadcast", (1, 1, 1), gpus, protocol="LL", use_double_scratch_buffer=True)
    with pytest.raises(
        ScheduleError, match=r"a packet of gpu 1 before this op, or before the call of gpu 0 ends; found"
    ):
        mscclpp.read(json.dumps(plan))
    schedule = ALGORITHMS["broadcast", "direct"].build(2)
    with pytest.raises(Stuck):
        for seed in range(20):
            assert run_plan(plan, schedule, seed, 6) == expected(schedule, 6)


def test_all_pairs_begin_with_relaxed_signals() -> None:
    gpus = []
    for gpu in range(3):
        a, b = (other for other in range(3) if other != gpu)
        data = f"rres i{gpu} {a}:i{gpu} {b}:i{gpu} > i{gpu} {a}:i{gpu} {b}:i{gpu}"
        text = f"rlxsignal 0 1, rlxwait 0 1, nop, {data}, nop, signal 0 1, wait 0 1"
        gpus.append([([f"memory {a}", f"memory {b}"], ops(text))])
    plan = execution_plan("allreduce", (3, 3, 0), gpus)
    schedule = read(plan)
    assert verify(schedule).labels == {"same_on_all_ranks"}  # rounded after each of three operands
    relaxed = json.loads(json.dumps(plan).replace('"wait"', '"rlxwait"'))
    with pytest.raises(
        ScheduleError, match=r"the end of its call: .* found no wait for a signal, other than a relaxed"
    ):
        mscclpp.read(json.dumps(relaxed))


def test_a_barrier_is_a_nop_for_several_blocks() -> None:
    gpus = []
    for peer in (1, 0):
        exchange = f"signal 0, wait 0, barrier 0 2, put s0 > {peer}:s1, nop, signal 0, wait 0, nop, re i0 s1 > i0"
        gpus.append([([], ops("copy i0 > s0, barrier 0 2")), ([f"memory {peer}"], ops(exchange))])
    plan = execution_plan("allreduce", (1, 1, 2), gpus)
    assert read(plan).num_rows == 2
    for block in plan["gpus"][0]["threadblocks"]:
        block["ops"] = [op if op["name"] != "barrier" else {"name": "nop"} for op in block["ops"]]
    with pytest.raises(ScheduleError, match=r"\(put\): .* no order between it and gpu 0, tb 0, op 0 \(copy\)|\(copy\)"):
        mscclpp.read(json.dumps(plan))


def test_a_semaphore_may_be_released_by_several_blocks() -> None:
    gpus = []
    for peer in (1, 0):
        put = f"signal 0, wait 0, sem_acquire 0, sem_acquire 0, nop, put s0*2 > {peer}:s2*2, nop, signal 0,"
        add = "wait 0, nop, re i0*2 s2*2 > i0*2"
        copies = [([], ops(f"copy i{i} > s{i}, nop, sem_release 0")) for i in (0, 1)]
        gpus.append([*copies, ([f"memory {peer}"], ops(put + add))])
    plan = execution_plan("allreduce", (2, 2, 4), gpus)
    assert read(plan).num_rows == 4
    ops_of_third = plan["gpus"][0]["threadblocks"][2]["ops"]
    ops_of_third.append(ops_of_third.pop(3))  # one acquired late: either of the two may be the one that is released
    with pytest.raises(ScheduleError, match=r"op 4 \(put\): .* no order between it and gpu 0, tb 0, op 0 \(copy\)"):
        mscclpp.read(json.dumps(plan))


def test_a_root_that_a_plan_does_not_tell_is_found() -> None:
    text = mscclpp.write(ALGORITHMS["broadcast", "binomial"].build(3, 2))
    assert '"root":2' in text
    assert mscclpp.read(text.replace(',"root":2', "")).root == 2


def test_plans_in_files(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(reduction()))
    assert mscclpp.read(file).digest == mscclpp.read(str(file)).digest
    file.write_bytes(b"\xff\xfe{")
    with pytest.raises(ScheduleError, match=r"plan.json: expected JSON in UTF-8"):
        mscclpp.read(file)


# -- refusing: each with the smallest change of a right plan


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("{", "{,"), r"MSCCL\+\+ plan: expected JSON; found an error"),
        (
            ('"gpus"', '"devices"'),
            r"MSCCL\+\+ plan: expected the fields .*; found an error: object missing required field `gpus`",
        ),
        (('"allreduce"', '"sendrecv"'), r"expected collective one of allreduce, .*; found 'sendrecv'"),
        (('"Simple"', '"LL128"'), r"expected protocol Simple or LL; found 'LL128'"),
        (('"id": 1', '"id": 2'), r"gpu 1: expected id=1, as gpus stand in order; found 2"),
        (('"input_chunks": 4', '"input_chunks": 2'), r"gpu 0: expected input_chunks=4 .* of allreduce; found 2 and 4"),
        (('"input_chunks": 4', '"input_chunks": 0'), r"gpu 0: .*: expected `int` >= 1 - at `\$.input_chunks`"),
        (
            ('"connected_to": [1]', '"connected_to": [2]'),
            r"gpu 0: expected channels to other gpus, below 2; found .* 2",
        ),
        (
            ('"channel_ids": [0]', '"channel_ids": [1]'),
            r"gpu 0, tb 0, op 2 \(signal\): expected a channel of its thread",
        ),
        (
            ('"memory"', '"switch"'),
            r"op 2 \(signal\): expected channel_type memory or port; what a switch .*; found 'swi",
        ),
        (('"copy"', '"cpkt"'), r"gpu 0, tb 0, op 0 \(cpkt\): expected protocol LL, .*; found Simple"),
        (('"copy"', '"glres"'), r"gpu 0, tb 0, op 0 \(glres\): expected an op .*: what a switch does in one op has no"),
        (('"copy"', '"pipeline"'), r"gpu 0, tb 0, op 0 \(pipeline\): .*: its rounds move parts of chunks"),
        (('"copy"', '"teleport"'), r"gpu 0, tb 0, op 0 \(teleport\): expected an op among nop, .*; found 'teleport'$"),
        (('"copy"', '"put"'), r"op 0 \(put\): expected dst_buff of local \(l\) and remote \(r\) buffers r\+; found l"),
        (
            ('"index": 2, "size": 2', '"index": 3, "size": 2'),
            r"op 0 \(copy\): expected chunks of i of gpu 0 below 4; found",
        ),
        (
            ('"index": 2, "size": 2', '"index": 2, "size": 1'),
            r"op 0 \(copy\): expected one size of all its buffers; found 1",
        ),
        (
            ('"index": 2, "size": 2', '"index": -2, "size": 2'),
            r"gpu 0, tb 0, op 0: .*: expected `int` >= 0 - at `\$.src_buff",
        ),
        (('"type": "i"', '"type": "x"'), r"gpu 0, tb 0, op 0: .*: invalid enum value 'x'"),
        (('"buffer_id": 1', '"buffer_id": 2'), r"op 6 \(rres\): expected a remote buffer of its thread block and gpu"),
        (('"sum"', '"mean"'), r"op 6 \(rres\): expected reduce_op one of sum, min, max; found 'mean'"),
        (
            ('{"name": "nop"}, ', ""),
            r"expected ops that use a chunk .* to be ordered, also by a nop .*; found no order",
        ),
        (('"wait"', '"flush"'), r"op 4 \(flush\): expected channel_type port; found memory"),
        (
            ('"signal"', '"wait"'),
            r"expected an order in which all ops can run; found that these wait forever: gpu 0, tb 0",
        ),
        (
            ('"wait"', '"signal"'),
            r"expected gpu 1 to wait for every signal on this channel; found 3 signals and 2 waits",
        ),
    ],
)
def test_a_malformed_plan_is_refused(change: tuple[str, str], message: str) -> None:
    text = json.dumps(reduction())
    changed = text.replace(*change, 1)
    assert changed != text
    with pytest.raises(ScheduleError, match=message) as refused:
        mscclpp.read(changed)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        (
            [["barrier 0 3"], ["barrier 0 3"]],
            r"op 0 \(barrier\): expected num_threadblocks=2, as many as have barrier 0",
        ),
        ([["barrier 16 1"]], r"op 0 \(barrier\): expected barrier_id below 16; found 16"),
        ([["sem_release 0"]], r"semaphore 0 to be acquired as often as released, .*; found 1 releases, 0 acquisitions"),
        (
            [["sem_acquire 0"], ["sem_acquire 0"]],
            r"expected one thread block to acquire semaphore 0; found tb 0 and tb 1",
        ),
        (
            [["copy i0*2 > i1*2"]],
            r"op 0 \(copy\): expected sources and destinations that are the same or do not overlap",
        ),
        ([["copy i0 > s0"], ["re i1 s0 > i1"]], r"tb 1, op 0 \(re\): .* no order between it and gpu 0, tb 0, op 0"),
        ([["nop"] * 65], r"gpu 0, tb 0: expected at most 64 ops; found 65"),
        ([["copy i0 > s0 tbg=2/2"]], r"op 0 \(copy\): expected tb_id below tbg_size=2; found 2"),
        (
            [["copy i0*3 > s0*3 tbg=0/65521"]],
            r"expected at most 1048576 chunks in all buffers and ops; found 1\d, each cut",
        ),
    ],
)
def test_blocks_of_one_gpu_that_are_refused(blocks: list[list[str]], message: str) -> None:
    plan = execution_plan("allreduce", (4, 4, 4), [[([], some) for some in blocks]])
    with pytest.raises(ScheduleError, match=message):
        mscclpp.read(json.dumps(plan))


def test_a_channel_end_has_one_thread_block() -> None:
    plan = json.loads(mscclpp.write(ALGORITHMS["all_gather", "direct"].build(2)))
    first, second = plan["gpus"][0]["threadblocks"]
    second["channels"] = first["channels"]
    with pytest.raises(
        ScheduleError, match=r"tb 1, op \d \(\w+\): expected one thread block to .*; found tb 0 and tb 1"
    ):
        mscclpp.read(json.dumps(plan))
