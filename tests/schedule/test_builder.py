"""What the builder refuses, and that it names the line that is wrong."""

import inspect
from collections.abc import Callable

import numpy as np
import pytest

from hocket.errors import ScheduleError
from hocket.schedule import Builder


def build(write: Callable[[Builder], None], collective: str = "all_reduce", p: int = 4, chunks: int = 4) -> None:
    schedule = Builder(collective, p, chunks)
    write(schedule)
    schedule.finish()


def in_step(write: Callable[[Builder], None]) -> Callable[[Builder], None]:
    def program(schedule: Builder) -> None:
        with schedule.step():
            write(schedule)

    return program


WRONG = [
    (lambda s: s.copy(src=4, dst=0, chunk=0), r"src is not a rank .*from 0 to 3, found 4"),
    (lambda s: s.copy(src=0, dst=-1, chunk=0), r"dst is not a rank .*found -1"),
    (lambda s: s.copy(src=0, dst=1, chunk=4), r"the source does not exist .*from 0 to 3, found 4"),
    (lambda s: s.copy(src=0, dst=1, src_chunk=0, dst_chunk=-1), r"the destination does not exist .*found -1"),
    (lambda s: s.copy(src=0, dst=1, chunk=4, count=3), r"does not exist .*found"),
    (lambda s: s.copy(src=0, dst=1, chunk=0, count=5), r"does not exist .*found 4"),
    (lambda s: s.copy(src=0, dst=1, chunk=0, count=0), r"moves no chunk .*found 0"),
    (lambda s: s.copy(src=0, dst=1, chunk=0, count=2, stride=0), r"does not advance .*found 0"),
    (lambda s: s.copy(src=0, dst=1), r"chunk=, or src_chunk= and dst_chunk="),
    (lambda s: s.copy(src=0, dst=1, chunks_=0), r"copy: expected arguments among src, dst, chunk, .*; found chunks_"),
    (lambda s: s.reduce(src=0, dst=1, chunk=0, to=1, by=2), r"reduce: expected arguments among .*; found by, to"),
    (lambda s: s.copy(src=0, dst=1, chunk=0, src_buffer="memory"), r"data, input, output or scratch; found 'memory'"),
    (lambda s: s.copy(src=0, dst=1, chunk=0, dst_buffer="input"), r"a row writes the input"),
    (lambda s: s.copy(src=0.5, dst=1, chunk=0), r"src: expected integers, found float64; use //"),
    (lambda s: s.copy(src=None, dst=1, chunk=0), r"src: expected a whole number below .* of them; found None$"),
    (lambda s: s.copy(src=0, dst="0", chunk=0), r"dst: expected a whole number below .* of them; found '0'$"),
    (lambda s: s.copy(src=0, dst=1, chunk=[[0], [1, 2]]), r"chunk: expected .* of them; found \[\[0\], \[1, 2\]\]$"),
    (lambda s: s.copy(src=0, dst=1, chunk=2**70), r"chunk: expected a whole number below 2\*\*31"),
    (lambda s: s.copy(src=0, dst=1, chunk=2**40), r"chunk: expected numbers below 2\*\*31"),
    (
        lambda s: s.copy(src=s.ranks[:2], dst=s.ranks[:3], chunk=0),
        r"broadcast to one shape, found src \(2,\), dst \(3,\)",
    ),
    (lambda s: (s.copy(src=0, dst=1, chunk=0), s.copy(src=2, dst=1, chunk=0)), r"only the first row .* may copy"),
    (
        lambda s: (s.copy(src=0, dst=1, chunk=0, count=2), s.reduce(src=2, dst=1, chunk=1, count=2)),
        r"partly overlapping ranges \(rank 1, chunk 1\)",
    ),
]


@pytest.mark.parametrize(("write", "message"), WRONG, ids=[message for _, message in WRONG])
def test_a_wrong_row_is_refused_with_its_line(write: Callable[[Builder], None], message: str) -> None:
    with pytest.raises(ScheduleError, match=message) as caught:
        build(in_step(write))
    first = inspect.getsourcelines(write)[1]
    file, line = str(caught.value).split(": ")[0].rsplit(":", 1)
    assert file == __file__ and first <= int(line) <= first + 2


def test_the_line_is_that_of_the_row_not_of_the_step() -> None:
    def program(schedule: Builder) -> None:
        with schedule.step():
            schedule.copy(src=0, dst=1, chunk=0)
            schedule.copy(src=1, dst=2, chunk=0)
            schedule.copy(src=2, dst=9, chunk=0)

    with pytest.raises(ScheduleError) as caught:
        build(program)
    assert f":{inspect.getsourcelines(program)[1] + 4}: " in str(caught.value)


def test_sizes_must_agree() -> None:
    def program(schedule: Builder) -> None:  # Two chunks a block: even and odd chunks may differ by an element.
        with schedule.step():
            schedule.copy(src=0, dst=1, src_chunk=0, dst_chunk=3)

    with pytest.raises(ScheduleError, match="different sizes"):
        build(program, "all_gather", p=2, chunks=4)
    build(program, "all_gather", p=4, chunks=4)


def test_input_and_output_have_the_ranks_own_sizes() -> None:
    with pytest.raises(ScheduleError, match=r"rank 1, chunk 0\): expected no input, it is empty here"):
        build(in_step(lambda s: s.copy(src=1, dst=0, chunk=0, src_buffer="input", dst_buffer="output")), "broadcast")
    with pytest.raises(ScheduleError, match="a chunk of input from 0 to 0, found 1"):
        build(in_step(lambda s: s.copy(src=1, dst=0, chunk=1, src_buffer="input", dst_buffer="output")), "all_gather")


def test_data_and_input_do_not_mix() -> None:
    with pytest.raises(ScheduleError, match="data, or input and output"):
        build(in_step(lambda s: s.copy(src=0, dst=1, chunk=0, src_buffer="input")))


def test_of_rows_of_data_and_of_output_both_lines_are_named() -> None:
    def mixed(schedule: Builder) -> None:
        with schedule.step():
            schedule.copy(src=0, dst=1, chunk=0)
        with schedule.step():
            schedule.copy(src=1, dst=0, src_chunk=0, dst_chunk=0, src_buffer="output", dst_buffer="output")

    line = mixed.__code__.co_firstlineno
    with pytest.raises(ScheduleError, match=rf":{line + 4}: .* found output here, and data at {__file__}:{line + 2}$"):
        build(mixed)


def test_rows_belong_to_a_step_and_steps_do_not_nest() -> None:
    with pytest.raises(ScheduleError, match="rows belong to a step"):
        build(lambda s: s.copy(src=0, dst=1, chunk=0))

    def nested(schedule: Builder) -> None:
        with schedule.step(), schedule.step():
            pass

    def repeated(schedule: Builder) -> None:
        with schedule.step():
            for _ in schedule.repeat(2):
                pass

    for program in (nested, repeated):
        with pytest.raises(ScheduleError, match="do not nest"):
            build(program)


def test_steps_without_rows_are_left_out() -> None:
    schedule = Builder("all_reduce", 1, 1)
    with schedule.step():
        schedule.copy(src=schedule.ranks[1:], dst=0, chunk=0)
    for _ in schedule.repeat(3):
        pass
    assert schedule.finish().num_steps == 0


def test_repeat_refuses_what_is_not_a_shift() -> None:
    def other_rank(schedule: Builder) -> None:
        for i in schedule.repeat(3):
            schedule.reduce(src=i, dst=3, chunk=0)

    def growing(schedule: Builder) -> None:
        for i in schedule.repeat(3):
            schedule.reduce(src=0, dst=3, chunk=np.arange(i + 1))

    def quadratic(schedule: Builder) -> None:
        for i in schedule.repeat(4):
            schedule.reduce(src=0, dst=3, chunk=i * i % 4)

    def two_speeds(schedule: Builder) -> None:
        for i in schedule.repeat(3):
            schedule.reduce(src=0, dst=3, chunk=i)
            schedule.reduce(src=0, dst=2, chunk=2 * i % 4)

    def moving_scratch(schedule: Builder) -> None:
        for i in schedule.repeat(3):
            schedule.copy(src=0, dst=3, src_chunk=0, dst_chunk=i, dst_buffer="scratch")

    for program in (other_rank, growing, quadratic, two_speeds, moving_scratch):
        with pytest.raises(ScheduleError, match=rf"{__file__}:\d+: repetition \d .*write a plain loop"):
            build(program)


def test_every_repetition_has_its_ranges_checked() -> None:
    def runs_over(schedule: Builder) -> None:
        for i in schedule.repeat(3):
            schedule.reduce(src=0, dst=3, chunk=2 + i)

    with pytest.raises(ScheduleError, match=r"source does not exist .*found 4"):
        build(runs_over)


def test_leaving_a_repetition_early_is_found() -> None:
    def program(schedule: Builder) -> None:
        for _ in schedule.repeat(3):
            schedule.reduce(src=0, dst=3, chunk=0)
            break

    with pytest.raises(ScheduleError, match="left before its end"):
        build(program)


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("method", ["step", "repeat", "include"])
def test_what_comes_after_a_repetition_left_early_or_in_it_blames_the_loop(left: bool, method: str) -> None:
    def then(schedule: Builder) -> None:
        if method == "step":
            with schedule.step():
                pass
        elif method == "repeat":
            list(schedule.repeat(2))
        else:
            schedule.include(Builder("all_reduce", 4, 4).finish())

    def program(schedule: Builder) -> None:
        for _ in schedule.repeat(3):
            if left:
                break
            then(schedule)
        then(schedule)

    loop = inspect.getsourcelines(program)[1] + 1
    with pytest.raises(
        ScheduleError, match=rf"^{__file__}:{loop}: .* at {__file__}:\d+: either .*break.* or .* inside"
    ):
        build(program)


def test_a_repetition_that_follows_from_the_turn_before_is_told_of_the_sample() -> None:
    def program(schedule: Builder) -> None:
        chunk = 0
        for _ in schedule.repeat(schedule.num_ranks):
            schedule.reduce(src=0, dst=1, chunk=chunk)
            chunk = (chunk + 1) % schedule.num_chunks

    build(program, p=1024, chunks=1024)
    with pytest.raises(ScheduleError, match=r"above 1,024 ranks the loop runs for some i only.* from i instead; write"):
        build(program, p=1025, chunks=1025)


def test_what_is_kept_beyond_its_end_takes_no_more() -> None:
    schedule = Builder("broadcast", 2, 1)
    with schedule.step():
        schedule.copy(src=0, dst=1, chunk=0)
    made = schedule.finish()
    late = (lambda: schedule.step().__enter__(), lambda: next(schedule.repeat(2)), lambda: schedule.include(made))
    for write in late:
        with pytest.raises(ScheduleError, match=rf"^{__file__}:\d+: the schedule is finished"):
            write()
    assert schedule.finish().digest == made.digest


def test_a_ring_over_many_ranks_is_one_repeat() -> None:
    p = 5000
    schedule = Builder("reduce_scatter", p, p)
    rank, calls = schedule.ranks, 0
    for i in schedule.repeat(p - 1):
        schedule.reduce(src=rank, dst=(rank + 1) % p, chunk=(rank - 1 - i) % p)
        calls += 1
    made = schedule.finish()
    assert calls < 100 and len(made.repeats) == 1 and made.num_rows == p * (p - 1)
    assert made.repeats[0].shift == p - 1


@pytest.mark.parametrize("p", [1, 2, 5, 8])
@pytest.mark.parametrize("stride", [1, 2, 3, 7])
def test_a_range_goes_on_at_the_first_chunk(p: int, stride: int) -> None:
    for count in range(1, p + 1):
        if len({i * stride % p for i in range(count)}) < count:
            continue
        schedule = Builder("all_gather", p, p)
        with schedule.step():
            schedule.copy(
                src=schedule.ranks,
                dst=0,
                chunk=schedule.ranks,
                dst_buffer="scratch",
                dst_chunk=p * schedule.ranks,
                count=count,
                stride=stride,
            )
        (step,) = schedule.finish().steps()
        single, _ = step.spread()
        moved = list(zip(single.src.tolist(), single.src_chunk.tolist(), single.dst_chunk.tolist(), strict=True))
        assert moved == [
            (rank, (rank + i * stride) % p, p * rank + i * stride) for rank in range(p) for i in range(count)
        ]


def test_ranges_of_both_sides_go_on_at_the_first_chunk() -> None:
    schedule = Builder("all_to_all", 3, 9)
    with schedule.step():
        schedule.copy(src=0, dst=1, src_buffer="input", src_chunk=2, dst_buffer="output", dst_chunk=1, count=3)
    (step,) = schedule.finish().steps()
    single, _ = step.spread()
    assert (single.src_chunk.tolist(), single.dst_chunk.tolist()) == ([2, 0, 1], [1, 2, 0])
