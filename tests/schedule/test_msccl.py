"""MSCCL XML in and out: schedules do what files say, and a refusal says why."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from hocket.algorithms import ALGORITHMS
from hocket.algorithms.registry import Algorithm
from hocket.errors import ScheduleError, VerifyError
from hocket.schedule import COLUMNS, Buffer, Builder, Places, Repeat, Schedule, Symbolic, compose, msccl, verify
from hocket.schedule.msccl.program import MAX_BLOCKS_PER_CHANNEL, can_run
from hocket.schedule.msccl.reader import schedule_of
from hocket.schedule.msccl.text import SPELLINGS, format_program, parse
from hocket.schedule.msccl.writer import program_of
from hocket.schedule.order import Order
from tests.schedule.msccl_files import (
    APART,
    PAIR,
    algo,
    all_pairs,
    all_pairs_in_scratch,
    results,
    ring,
    run_file,
    types,
)
from tests.schedule.random_schedules import random_schedule


def rows(schedule: Schedule) -> list[set[tuple[int, ...]]]:
    """Returns the single-chunk rows of each step."""
    steps = [one.expanded() for one in schedule.steps()]
    return [set(zip(*(getattr(one, name).tolist() for name in COLUMNS), strict=True)) for one in steps]


def folds_of_many(schedule: Schedule) -> bool:
    """Whether a row group has more than two operands, which the format can only fold one by one."""
    return any(fold.pattern.max_count > 2 for fold in Places(schedule).folds())


def transfers(schedule: Schedule, *, trees: bool = True) -> Counter[tuple[int, int, int, int]]:
    """Returns for each message its two ranks, its chunk of `data`, and its value, wherever that is stored: the tree of
    reductions with their roundings or, without trees, the ranks that contributed."""
    places = Places(schedule)
    order, held = Order(places), Symbolic(places)
    found: Counter[tuple[int, int, int, int]] = Counter()
    for fold in places.folds():
        old_first = {int(read) for read in fold.pattern.starts if fold.step.reduce[fold.pattern.row_of_read[read]]}
        for read, row in enumerate(fold.pattern.row_of_read.tolist()):
            src, dst, at = int(fold.step.src[row]), int(fold.step.dst[row]), fold.reads[read]
            if src != dst and read not in old_first:
                value = order.hashes[at] if trees else held.sets[at, 0]
                found[src, dst, int(held.chunk[at]), int(value)] += 1
        order.apply(fold)
        held.apply(fold)
    return found


# -- reading


def test_the_ring_of_msccl_tools_is_our_ring_with_other_chunks() -> None:
    text = ring(4)
    assert types(text)[0] == ["s i0", "rrs i3", "rrs i2", "rrcs i1", "rcs i0", "rcs i3", "r i2"]
    found, ours = msccl.read(text), ALGORITHMS["all_reduce", "ring"].build(4)
    assert verify(found).labels == {"same_on_all_ranks"}
    moved = tuple(Repeat(step.shifted(1, 4)) for step in ours.steps())
    assert rows(found) == rows(replace(ours, repeats=moved))
    assert types(msccl.write(found)) == types(text)


def test_an_exchange_is_one_step() -> None:
    for text in (PAIR, APART):
        found = msccl.read(text)
        data = Buffer.DATA
        assert rows(found) == [{(0, 1, data, data, 0, 0, 1, 1, True), (1, 0, data, data, 0, 0, 1, 1, True)}]
        assert verify(found).sent == 1


@pytest.mark.parametrize("text", [all_pairs(4), all_pairs_in_scratch(4)], ids=["stored", "scratch"])
def test_all_pairs(text: str) -> None:
    found = msccl.read(text)
    assert verify(found).labels == {"same_on_all_ranks"}
    assert found.num_steps == 4
    assert found.num_scratch == 0  # Data that would wait in scratch for one fold is read at its source.
    assert transfers(msccl.read(msccl.write(found))) == transfers(found)


def test_all_gather_out_of_place_and_in_place() -> None:
    gpus = [[(1, 1, 0, "s i0 *2", "r o2 *2"), (-1, -1, 0, "cpy i0 o0 *2")]]
    gpus += [[(0, 0, 0, "s i0 *2", "r o0 *2"), (-1, -1, 0, "cpy i0 o2 *2")]]
    out = msccl.read(algo("allgather", (4, 2, 4, 0), gpus, inplace=0))
    inside = msccl.read(algo("allgather", (4, 2, 4, 0), gpus, inplace=1))
    assert not out.uses_data and out.num_rows == 8
    assert inside.uses_data and inside.num_rows == 4  # In place, the copies are from a chunk to itself.
    assert verify(out).sent == verify(inside).sent == verify(msccl.read(msccl.write(out))).sent


def test_all_to_all_in_place_leaves_what_stays() -> None:
    blocks = [[(1, -1, 0, "s i1"), (-1, 1, 0, "r i1 <0.0")], [(0, -1, 0, "s i0"), (-1, 0, 0, "r i0 <0.0")]]
    found = msccl.read(algo("alltoall", (2, 2, 0, 0), blocks))
    assert verify(found).sent == 0.5
    assert found.num_rows == 4


def test_reduce_scatter_is_spelled_in_two_ways() -> None:
    gpus = [[(1, 1, 0, "s i1", "rrc i0 o0")], [(0, 0, 0, "s i0", "rrc i1 o0")]]
    texts = [algo(coll, (2, 2, 1, 0), gpus, inplace=0) for coll in ("reduce_scatter", "reducescatter")]
    assert msccl.read(texts[0]).digest == msccl.read(texts[1]).digest
    verify(msccl.read(texts[0]))


def test_the_input_of_a_call_out_of_place_is_not_written() -> None:
    gpus = [[(1, 1, 0, "s i0", "rrc i0", "cpy i0 o0")], [(0, 0, 0, "s i0", "rrc i0", "cpy i0 o0")]]
    found = msccl.read(algo("allreduce", (1, 1, 1, 0), gpus, inplace=0))
    verify(found)
    assert found.num_rows == 4  # The result goes to the output at once.


def test_a_result_that_is_only_sent_waits_in_scratch_where_its_operand_is_still_needed() -> None:
    gpus = [[(1, -1, 0, "s i0")], [(2, 0, 0, "rrs i0"), (2, -1, 1, "s i0 <0.0")]]
    gpus += [[(-1, 1, 0, "rrc i0"), (-1, 1, 1, "rrc i0 <0.0")]]
    text = algo("allreduce", (1, 1, 0, 0), gpus)
    found = msccl.read(text)
    assert found.num_scratch == 1
    assert results(found) == run_file(text, found)


def test_a_message_may_outlive_its_source() -> None:
    """Rank 0 overwrites a chunk that it has sent; rank 1 folds the old value onto the result of the new one."""
    gpus = [[(1, -1, 0, "s i0"), (-1, -1, 0, "cpy i1 i0 <0.0"), (1, -1, 1, "s i0 <1.0")]]
    gpus += [[(-1, 0, 0, "rrc i0 <1.0"), (-1, 0, 1, "r i0")]]
    text = algo("allreduce", (2, 2, 0, 0), gpus)
    found = msccl.read(text)
    assert found.num_scratch == 1
    assert results(found) == run_file(text, found)


@pytest.mark.parametrize("root", range(3))
def test_a_root_that_a_file_does_not_tell_is_found(root: int) -> None:
    for name, coll in (("binomial", "broadcast"), ("binomial", "reduce")):
        schedule = ALGORITHMS[coll, name].build(3, root)
        text = msccl.write(schedule)
        assert f' root="{root}"' in text
        assert msccl.read(text.replace(f' root="{root}"', "")).root == root


def test_files(tmp_path: Path) -> None:
    (tmp_path / "pair.xml").write_text(PAIR)
    assert msccl.read(tmp_path / "pair.xml").digest == msccl.read(str(tmp_path / "pair.xml")).digest
    (tmp_path / "wrong.xml").write_text(PAIR.replace("rrc", "ra"))
    with pytest.raises(ScheduleError, match=r"wrong.xml:5: gpu 0, tb 0, step 1: expected type= one of .*'ra'"):
        msccl.read(tmp_path / "wrong.xml")
    (tmp_path / "bytes.xml").write_bytes(b"\xff\xfe<")
    with pytest.raises(ScheduleError, match=r"bytes.xml: expected XML in UTF-8"):
        msccl.read(tmp_path / "bytes.xml")


# -- refusing: each with the smallest change of a right file


@pytest.mark.parametrize(
    ("change", "message"),
    [
        # not the format at all
        (("<algo", "<"), r"MSCCL XML:1: expected XML; found an error"),
        (("</algo>", ""), r"MSCCL XML:15: expected XML; found an error: no element|unclosed"),
        (("<algo", "<!DOCTYPE algo><algo"), r"MSCCL XML:1: expected no document type"),
        (("algo", "graph"), r"MSCCL XML:1: expected <algo> as the root; found <graph>"),
        (("<gpu", "<cpu"), r":2: expected <gpu> in <algo>; found <cpu>"),
        (('name="test"', f'name="{" " * (17 << 20)}"'), r"expected at most 16 MiB of XML"),
        # <algo>
        (('"allreduce"', '"allreduced"'), r"expected coll= one of allgather, .*; found 'allreduced'"),
        (('"allreduce"', '"custom"'), r"found 'custom' \(custom: its result is told nowhere"),
        (('"Simple"', '"Complex"'), r"expected proto= one of Simple, LL, LL128; found 'Complex'"),
        ((' inplace="1"', ""), r"expected inplace= from 0 to 1; found none"),
        (('ngpus="2"', 'ngpus="3"'), r"expected ngpus=3 elements <gpu>; found 2: gpu 2 is missing"),
        (('ngpus="2"', 'ngpus="1"'), r"expected send= from -1 to 0; found '1'"),
        (('"allreduce"', '"allgather"'), r"expected nchunksperloop= a multiple of ngpus=2; found 1"),
        (('nchunksperloop="1"', 'nchunksperloop="2"'), r"expected i_chunks=2, as nchunksperloop=2 .* or 0; found 1"),
        # <gpu>
        (('gpu id="1"', 'gpu id="0"'), r":8: gpu 0: expected every gpu once; found gpu 0 again"),
        (('gpu id="1"', 'gpu id="x"'), r":8: expected id= from 0 to 1; found 'x'"),
        (('s_chunks="0"', 's_chunks="-1"'), r"gpu 0: expected s_chunks= from 0"),
        # <tb>
        (('tb id="0"', 'tb id="1"'), r"gpu 0: expected thread blocks numbered from 0; found \[1\]"),
        (('send="1"', 'send="0"'), r":3: gpu 0, tb 0: expected peers other than its own gpu; found send=0, recv=1"),
        (('send="1"', 'send="-1"'), r":4: gpu 0, tb 0, step 0: expected .* send= a gpu, as s needs; found send=-1"),
        (('chan="0"', 'chan="1"'), r"expected chan= from 0 to 0; found '1'"),
        # <step>
        (('"rrc"', '"ra"'), r":5: gpu 0, tb 0, step 1: expected type= one of s, r, .*; found 'ra'"),
        ((' s="1"', ' s="2"'), r"gpu 0, tb 0, step 1: expected s=1, as steps are numbered in their order; found 2"),
        (('cnt="1"', 'cnt="72"'), r"step 0: expected cnt= from 1 to 71; found '72'"),
        (('srcbuf="i"', 'srcbuf="d"'), r"step 0: expected srcbuf= i, o or s; found 'd'"),
        (('srcoff="0"', 'srcoff="1"'), r"step 0: expected a chunk of i below 1, its i_chunks; found 1"),
        (('srcbuf="i"', 'srcbuf="s"'), r"step 0: expected a chunk of s below 0, its s_chunks; found 0"),
        (('depid="-1"', 'depid="4"'), r"step 0 \(s\): expected a step of its GPU to depend on; found no tb 4, step -1"),
    ],
)
def test_a_malformed_file_is_refused(change: tuple[str, str], message: str) -> None:
    text = PAIR.replace(*change) if change[0] == "algo" else PAIR.replace(*change, 1)
    assert text != PAIR
    with pytest.raises(ScheduleError, match=message) as refused:
        msccl.read(text)
    assert len(str(refused.value)) < 400


TWO = (2, 2, 0, 0)


@pytest.mark.parametrize(
    ("gpus", "message"),
    [
        (
            [[(1, -1, 0, "s i0")], []],
            r"gpu 0, tb 0, step 0 \(s\): expected gpu 1 to receive this message on channel 0",
        ),
        ([[], [(-1, 0, 0, "r i0")]], r"gpu 1, tb 0, step 0 \(r\): expected gpu 0 to send this message on channel 0"),
        (
            [[(1, -1, 0, "s i0 *2")], [(-1, 0, 0, "r i0")]],
            r"expected cnt=2, as gpu 0, tb 0, step 0 \(s\) sends; found 1",
        ),
        (
            [[(1, 1, 0, "r i0", "s i0")], [(0, 0, 0, "r i0", "s i0")]],
            r"found a circle: gpu 0, tb 0, step 0 \(r\) <- gpu 1, tb 0, step 1 \(s\) <- gpu 1, tb 0, step 0 \(r\) <-",
        ),
        (
            [[(-1, -1, 0, "cpy i0 i1 <1.0"), (1, -1, 0, "s i1 <0.0")], [(-1, 0, 0, "r i0")]],
            r"found a circle: gpu 0, tb 0, step 0 \(cpy\) <- gpu 0, tb 1, step 0 \(s\) <- gpu 0, tb 0, step 0 \(cpy\)",
        ),
        (
            [[(1, -1, 0, "s i0"), (-1, 1, 0, "r i0")], [(0, 0, 0, "s i0", "r i0")]],
            r"gpu 0, tb 1, step 0 \(r\): .* to be ordered; found no order between it and gpu 0, tb 0, step 0 \(s\)",
        ),
        (
            [[(1, -1, 0, "s i0"), (1, -1, 0, "s i1")], [(-1, 0, 0, "r i0", "r i1")]],
            r"gpu 0, tb 0: expected one thread block with send=1 on channel 0; found 2",
        ),
        ([[(-1, -1, 0, "nop <1.0")], []], r"expected a step of its GPU to depend on; found no tb 1, step 0"),
        (
            [[(-1, -1, 0, "cpy i0 i1")] * (2 * MAX_BLOCKS_PER_CHANNEL + 1), []],
            r"gpu 0: expected at most 64 thread blocks on channel 0; found 65",
        ),
    ],
)
def test_a_program_that_cannot_run_is_refused(gpus: list, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        msccl.read(algo("allreduce", TWO, gpus))


def test_a_copy_onto_itself_in_parts_is_refused() -> None:
    with pytest.raises(ScheduleError, match=r"expected srcoff and dstoff of chunks that do not overlap; found 0 and 1"):
        msccl.read(algo("allreduce", (3, 3, 0, 0), [[(-1, -1, 0, "cpy i0 i1 *2")]]))


def test_a_file_of_too_many_steps_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hocket.schedule.msccl.text._MAX_STEPS_IN_ALL", 3)
    with pytest.raises(ScheduleError, match=r"gpu 1, tb 0, step 1: expected at most 3 steps in all; found more"):
        msccl.read(PAIR)


def test_a_step_that_nobody_tells_of_is_not_waited_for() -> None:
    with pytest.raises(ScheduleError, match=r"expected hasdep=1 at tb 1, step 0, for which it waits; found hasdep=0"):
        msccl.read(APART.replace('hasdep="1"', 'hasdep="0"'))


def test_a_wrong_result_is_for_the_proof_to_find() -> None:
    wrong = msccl.read(PAIR.replace('"rrc"', '"r"', 1))
    with pytest.raises(VerifyError, match=r"law 2 \(rank 0, chunk 0\): .* expected the contribution of ranks 0-1"):
        verify(wrong)


# -- writing


def test_only_collectives_of_the_format_are_written() -> None:
    with pytest.raises(ScheduleError, match=r"expected a collective that it has, all_reduce, .*; found barrier"):
        msccl.write(ALGORITHMS["barrier", "dissemination"].build(4))


def test_a_wrong_schedule_is_not_written() -> None:
    builder = Builder("all_reduce", 2, 1)
    with builder.step():
        builder.copy(src=0, dst=1, chunk=0)
    with pytest.raises(VerifyError, match="law 2"):
        msccl.write(builder.finish())


def test_one_rounding_of_three_operands_is_not_written() -> None:
    with pytest.raises(ScheduleError, match=r"a change of rank_order: .* step 0 folds 4 operands at rank 0, chunk 0"):
        msccl.write(ALGORITHMS["all_reduce", "direct"].build(4))


def test_more_instructions_than_a_thread_block_has_are_not_written() -> None:
    builder = Builder("broadcast", 2, 1)
    for i in range(514):
        with builder.step():
            builder.copy(src=i % 2, dst=1 - i % 2, chunk=0)
    with pytest.raises(ScheduleError, match=r"gpu 0, tb 0: expected at most 256 steps of a thread block; found 258"):
        msccl.write(builder.finish())


@pytest.mark.slow("a schedule of many ranks")
def test_many_peers_have_several_channels_and_many_chunks_one_instruction() -> None:
    schedule = compose.refine(ALGORITHMS["all_gather", "direct"].build(17), 72)
    program = parse(msccl.write(schedule, 'a "name" & more'), "test")
    assert program.name == 'a "name" & more'
    assert program.num_channels == 2
    for blocks in program.blocks:
        assert all(count <= MAX_BLOCKS_PER_CHANNEL for count in Counter(one.channel for one in blocks).values())
        assert {one.count for block in blocks for one in block.steps} == {71, 1}


BUILT_IN = {key: one for key, one in ALGORITHMS.items() if one.collective in SPELLINGS}


@pytest.mark.parametrize("one", BUILT_IN.values(), ids=map("-".join, BUILT_IN))
def test_a_round_trip_keeps_transfers_and_certificate(one: Algorithm) -> None:
    for p in filter(one.allows, (1, 2, 3, 4, 6)):
        for root in {0, p - 1} if one.build(p).kind.rooted and p < 4 else {0}:
            schedule = one.build(p, root)
            try:
                text = msccl.write(schedule)
            except ScheduleError as error:
                assert "and rounds once" in str(error)
                continue
            found = msccl.read(text)
            expected, certificate = verify(schedule), verify(found)
            assert (certificate.labels, certificate.sent) == (expected.labels, expected.sent)
            # In a file, a fold of many has no label that asks for one rounding; it becomes a chain.
            trees = not folds_of_many(schedule)
            assert transfers(found, trees=trees) == transfers(schedule, trees=trees)
            # Fewer if staggered transfers are independent of each other: the format has no steps.
            assert certificate.num_steps <= expected.num_steps or not trees
            again = msccl.read(msccl.write(found))
            assert (transfers(again), again.num_steps) == (transfers(found), found.num_steps)
            if p > 1 and one.name == "ring":
                assert rows(found) == rows(schedule)


@pytest.mark.parametrize("early", range(8))
def test_any_schedule_is_what_its_file_does(early: int) -> None:
    """Random schedules without a purpose, with all dependencies that their shape allows."""
    for seed in range(early, 320, 8):
        schedule = random_schedule(seed)
        if schedule.collective in SPELLINGS:
            program = program_of(schedule, "random")
            assert can_run(program)
            text, expected = format_program(program), results(schedule)
            assert run_file(text, schedule, seed) == expected, seed
            assert results(schedule_of(parse(text, "random"))) == expected, seed
