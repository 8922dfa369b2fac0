"""Registering algorithms: arguments, compositions, a user's own file."""

import functools
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket.algorithms import ALGORITHMS, algorithm, load
from hocket.algorithms.registry import is_built_in
from hocket.errors import ScheduleError, VerifyError
from hocket.schedule import Builder


def chain(schedule: Builder) -> None:
    """Rank by rank."""
    for rank in range(schedule.num_ranks - 1):
        with schedule.step():
            hop = (schedule.root + rank) % schedule.num_ranks
            schedule.copy(src=hop, dst=(hop + 1) % schedule.num_ranks, chunk=0)


def star(schedule: Builder) -> None:
    """All to one."""
    others = schedule.ranks[schedule.ranks != schedule.root]
    with schedule.step():
        schedule.copy(src=others, dst=schedule.root, chunk=others)


def test_arguments_of_build_are_checked() -> None:
    ring = ALGORITHMS["all_reduce", "ring"]
    for arguments, message in (((0,), "at least 1 rank"), ((4, 4), "root from 0 to 3"), ((4, -1), "root from 0 to 3")):
        with pytest.raises(ValueError, match=message):
            ring.build(*arguments)
    for wrong in (("4",), (4, "a"), (4.0,)):
        with pytest.raises(TypeError, match=r"all_reduce ring .*: expected num_ranks and root as ints, found "):
            ring.verify(*wrong)
    assert ring.build(np.int64(4)) is ring.build(4)
    for join in (ring.then, ring.beside):
        with pytest.raises(TypeError, match=f"{join.__name__}: expected an algorithm, such as .*; found 3"):
            join(3)  # type: ignore[arg-type]


def test_schedules_are_remembered_and_roots_matter_only_where_there_are_roots() -> None:
    ring, tree = ALGORITHMS["all_reduce", "ring"], ALGORITHMS["broadcast", "binomial"]
    assert ring.build(4) is ring.build(4, 3)
    assert tree.build(4) is not tree.build(4, 3) and tree.build(4, 3) is tree.build(4, 3)


def test_a_constraint_on_ranks_is_part_of_the_promise() -> None:
    one = algorithm("broadcast", name="hops", chunks=lambda p: 1, ranks=("an even number of", lambda p: p % 2 == 0))
    made = one(chain)
    assert made.allows(4) and not made.allows(3) and made.doc == "Rank by rank."
    with pytest.raises(ValueError, match="expected an even number of ranks, found 3"):
        made.build(3)
    assert made.reversed().allows(3) is False


def test_promises_may_depend_on_the_root_and_are_held() -> None:
    promises = {"chunks": lambda p, root: 1, "steps": lambda p: p - 1}
    right = algorithm("broadcast", name="hops", sent=lambda p, root: min(p - 1, 1), **promises)(chain)
    assert right.verify(5, 2, laws=(1, 2, 4, 5)).num_steps == 4
    wrong = algorithm("broadcast", name="hops", sent=lambda p: p, **promises)(chain)
    with pytest.raises(VerifyError, match=r"law 5 .*expected 5, found 1") as caught:
        wrong.verify(5, laws=(5,))
    assert any(f"hops ({__file__}" in note for note in caught.value.__notes__)
    assert ALGORITHMS["broadcast", "hops"] is wrong


def test_one_program_may_serve_several_collectives() -> None:
    first = algorithm("gather", "gather_v", name="star", chunks=lambda p: p, steps=lambda p: min(p - 1, 1))(star)
    assert first is ALGORITHMS["gather", "star"]
    second = ALGORITHMS["gather_v", "star"]
    assert (second.collective, second.doc, second.source) == ("gather_v", "All to one.", first.source)
    assert [one.build(3, 1).collective for one in (first, second)] == ["gather", "gather_v"]
    for one in (first, second):
        assert one.verify(4, 2, laws=(1, 2, 4, 5)).num_steps == 1
    with pytest.raises(ValueError, match=r"gather binomial .* is built in"):
        algorithm("gather_v", "gather", name="binomial", chunks=lambda p: p)(star)
    assert ("gather_v", "binomial") not in ALGORITHMS, "either all are registered, or none"
    with pytest.raises(
        ScheduleError, match=rf"^{__file__}:\d+: expected a collective, one of all_reduce, .*found none"
    ):
        algorithm(name="star", chunks=lambda p: p)
    with pytest.raises(ScheduleError, match="expected a composition for gather_v, found gather"):
        algorithm("gather", "gather_v", name="again")(first.refine(2))


def test_every_algorithm_that_hocket_brings_is_built_in(tmp_path: Path) -> None:
    assert [str(one) for one in ALGORITHMS.values() if not is_built_in(one.source)] == []
    assert not is_built_in(f"{tmp_path / 'ring.py'}:1")


def test_built_in_algorithms_stay() -> None:
    with pytest.raises(ValueError, match=r"all_reduce ring .* is built in"):
        algorithm("all_reduce", name="ring", chunks=lambda p: 1)(chain)


def test_a_composition_is_an_algorithm() -> None:
    reduce, broadcast = ALGORITHMS["reduce", "binomial"], ALGORITHMS["broadcast", "binomial"]
    made = algorithm(
        "all_reduce",
        name="two_trees",
        steps=lambda p: 2 * (p - 1).bit_length(),
        labels=("balanced_tree",),
        doc="Up, down.",
    )(reduce.then(broadcast))
    assert made.doc == "Up, down." and made.source.startswith(__file__)
    for p in (1, 2, 5, 8):
        made.verify(p, laws=(1, 2, 4, 5))
    with pytest.raises(ScheduleError, match="expected a composition for all_gather"):
        algorithm("all_gather", name="x")(reduce.then(broadcast))
    with pytest.raises(ScheduleError, match="reduce then broadcast"):
        broadcast.then(reduce)
    fine = ALGORITHMS["all_gather", "ring"].refine(2).reversed()
    assert fine.collective == "reduce_scatter" and fine.build(3).num_chunks == 6


def test_an_algorithm_can_call_another() -> None:
    @algorithm("all_reduce", name="called", chunks=lambda p: p)
    def called(schedule: Builder) -> None:
        ALGORITHMS["reduce_scatter", "direct"](schedule)
        ALGORITHMS["all_gather", "ring"].refine(1)(schedule)

    assert called.verify(4, laws=(1, 2, 4)).num_steps == 4


def test_chunks_are_needed() -> None:
    with pytest.raises(ScheduleError, match=rf"{__file__}:\d+: expected chunks="):
        algorithm("broadcast", name="hops")(chain)


class Counted:
    """A function that is an object."""

    def __call__(self, p: int, *, root: int) -> int:
        return p - 1 if root < p else -1


@pytest.mark.parametrize(
    "steps",
    [
        lambda p, root: p - 1 + 0 * root,
        lambda p, k=1: p - k,
        lambda p, k=1, root=99: (p - k) * (root < p),
        functools.partial(lambda p, k: p - k, k=1),
        Counted(),
        (2).__rsub__,
        np.array([-1, 0, 1, 2, 3, 4]).item,
        lambda p: np.float64(p - 1),
    ],
)
def test_only_a_parameter_named_root_gets_the_root(steps: Any) -> None:
    one = algorithm("broadcast", name="hops", chunks=lambda p, k=1: k, steps=steps)(chain)
    expected = 2 if steps == (2).__rsub__ else 4
    assert one.declared(4 if expected == 2 else 5, 3).steps == expected
    assert one.build(5, 3).num_chunks == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"chunks": 4}, r'expected chunks= to be a formula, such as "2 \* \(P - 1\)", or a function of .*; found 4'),
        ({"steps": 3}, "expected steps= to be a formula, such as .*, or a function of the rank count; found 3"),
        ({"sent": 0.5}, "expected sent= to be a formula"),
        ({"ranks": "2 or 3"}, "expected ranks= such as .*found '2 or 3'"),
        ({"ranks": ("even", 2)}, "expected ranks= such as"),
        ({"name": ""}, "expected name= to be a text; found ''"),
        ({"name": 3}, "expected name= to be a text; found 3"),
        ({"doc": b"x"}, "expected doc= to be a text"),
        ({"labels": "rank_order"}, "expected labels= to be a tuple of some of"),
        ({"labels": ("fast",)}, "expected labels="),
    ],
)
def test_arguments_of_algorithm_are_checked_at_once(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ScheduleError, match=rf"^{__file__}:\d+: {message}"):
        algorithm("broadcast", **{"name": "hops", "chunks": lambda p: 1} | arguments)
    assert ("broadcast", "hops") not in ALGORITHMS


MISTAKES = """
import hocket.algorithms as h

@h.algorithm("broadcast", name="own", chunks={chunks}, steps={steps}, ranks=("some", {ranks}))
def own(schedule):
    with schedule.step():
        {row}
{last}
"""
RIGHT = {
    "chunks": "lambda p: 1",
    "steps": "lambda p: 1",
    "ranks": "lambda p: True",
    "row": "schedule.copy(src=0, dst=1, chunk=0)",
    "last": "",
}


@pytest.mark.parametrize(
    ("mistake", "line", "message"),
    [
        # While the program writes its schedule.
        ({"row": "schedule.cpoy(src=0, dst=1)"}, 7, "schedule has no 'cpoy'; expected .*; did you mean 'copy'"),
        ({"row": "schedule.ranks[99]"}, 7, "IndexError: index 99"),
        ({"row": "1 // 0"}, 7, "ZeroDivisionError: "),
        ({"row": "schedule.copy(0)"}, 7, r"TypeError: Builder.copy\(\) missing 1"),
        ({"row": "schedule.reduce(*'src')"}, 7, "src: expected a whole number"),
        ({"row": "assert False"}, 7, "AssertionError$"),
        ({"row": "exit()"}, 7, "SystemExit"),
        ({"row": "1\n    return 3"}, 4, "returns nothing; found 3"),
        ({"row": "yield"}, 4, "returns nothing; found <generator"),
        # In what it promises.
        ({"chunks": "lambda p: 4 // 0"}, 4, "ZeroDivisionError"),
        ({"chunks": "lambda p: p / 8"}, 4, r"expected chunks= to give a whole number, found 0.5; use //"),
        ({"chunks": "lambda p: None"}, 4, "expected chunks= to give a number, found None"),
        ({"chunks": "lambda p: 0"}, 4, "expected a positive multiple"),
        ({"chunks": "lambda: 1"}, 4, "TypeError: "),
        ({"steps": "lambda p: missing"}, 4, "NameError: "),
        ({"steps": "lambda p: 1.5"}, 4, "expected steps= to give a whole number"),
        ({"ranks": "lambda p: 1 // 0"}, 4, "ZeroDivisionError"),
        ({"chunks": "lambda p: 1, groups=lambda p: (p, 1)"}, 4, r"groups= to give .* sum is 4; found \(4, 1\)"),
        ({"chunks": "lambda p: 1, groups=lambda p: None"}, 4, "groups= to give .* sum is 4; found None"),
        ({"chunks": "lambda p: 1, dims=lambda p: (p, 2)"}, 4, r"dims= to give .* product is 4; found \(4, 2\)"),
        ({"chunks": "lambda p: 1, dims=lambda p: 1 // 0"}, 4, "ZeroDivisionError"),
    ],
)
def test_a_mistake_in_a_users_program_names_its_line(
    mistake: dict[str, str], line: int, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "own.py"
    file.write_text(MISTAKES.format(**RIGHT | mistake))
    (one,) = load(str(file))
    with pytest.raises(ScheduleError, match=rf"^{file}:{line}( \(own, 4 ranks\))?: .*{message}"):
        one.verify(4)


@pytest.mark.parametrize(
    ("mistake", "line", "message"),
    [
        ({"last": "1 // 0"}, 8, "ZeroDivisionError"),
        ({"last": "import no_such_module"}, 8, "ModuleNotFoundError"),
        ({"last": "raise SystemExit"}, 8, "SystemExit"),
        ({"last": "def f()\n"}, 8, "SyntaxError: expected ':'"),
        ({"row": "pass\n   x"}, 8, "IndentationError"),
        ({"chunks": "4"}, 4, "expected chunks="),
        ({"last": "h.algorithm('brodcast', name='x')"}, 8, "expected a collective"),
        ({"last": "h.algorithm('broadcast', name='binomial', chunks=len)(own.write)"}, 8, "ValueError: .* built in"),
        ({"last": "h.load('/no/such.py')"}, 8, "ValueError: .* no file"),
        (
            {"last": "h.find(__file__)"},
            8,
            "expected a file that only registers .*put what uses them under `if __name__",
        ),
        ({"last": "h.algorithm('broadcast', name=1, chunks=len)"}, 8, "expected name= to be a text"),
    ],
)
def test_a_file_that_cannot_be_run_names_its_line(
    mistake: dict[str, str], line: int, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "own.py"
    file.write_text(MISTAKES.format(**RIGHT | mistake))
    before = dict(ALGORITHMS)
    with pytest.raises(ScheduleError, match=rf"^{file}:{line}: {message}"):
        load(str(file))
    assert before == ALGORITHMS


BREACHES = """
import hocket

@hocket.algorithm("all_reduce", name="own", chunks=lambda p: {chunks}, {promise})
def own(schedule):
    first, others = schedule.ranks[:1], schedule.ranks[1:]
    with schedule.step():
        {up}
    with schedule.step():
        {down}
"""
HELD = {
    "chunks": "1",
    "promise": "steps=lambda p: 2",
    "up": "schedule.reduce(src=others, dst=0, chunk=0)",
    "down": "schedule.copy(src=0, dst=others, chunk=0)",
}


@pytest.mark.parametrize(
    ("breach", "law", "line"),
    [
        # Scratch is as long as chunk 1, which can be longer than chunk 0: no single call is wrong.
        (
            {
                "chunks": "2",
                "up": "schedule.copy(src=0, dst=1, src_chunk=1, dst_buffer='scratch', dst_chunk=0)",
                "down": "schedule.copy(src=1, dst=2, src_buffer='scratch', src_chunk=0, dst_chunk=0)",
            },
            1,
            9,
        ),
        # A step that is wrong in itself.
        ({"up": "schedule.reduce(src=[*others, 1], dst=0, chunk=0)"}, 2, 7),
        ({"down": "schedule.copy(src=0, dst=others, src_buffer='scratch', src_chunk=0, dst_chunk=0)"}, 2, 9),
        # Something that no step does.
        ({"up": "schedule.reduce(src=others[1:], dst=0, chunk=0)"}, 2, 4),
        ({"down": "schedule.copy(src=0, dst=others[1:], chunk=0)"}, 2, 4),
        ({"promise": "labels=('balanced_tree',)"}, 4, 4),
        ({"promise": "steps=lambda p: 3"}, 5, 4),
        ({"promise": "sent=lambda p: 1"}, 5, 4),
    ],
)
def test_a_breach_of_the_law_names_the_line_of_the_step_or_of_the_algorithm(
    breach: dict[str, str], law: int, line: int, tmp_path: Path
) -> None:
    file = tmp_path / "own.py"
    file.write_text(BREACHES.format(**HELD | breach))
    (one,) = load(str(file))
    with pytest.raises(VerifyError, match=rf"^{file}:{line}: law {law} ?[:(]") as caught:
        one.verify(4)
    assert (caught.value.site, caught.value.law) == (f"{file}:{line}", law)
    assert str(caught.value).removesuffix(caught.value.next_step).count(str(file)) == 1
    assert pickle.loads(pickle.dumps(caught.value)).site == f"{file}:{line}"


def test_a_wrong_use_of_built_in_algorithms_is_not_their_fault() -> None:
    gather, scatter = ALGORITHMS["all_gather", "ring"], ALGORITHMS["reduce_scatter", "ring"]
    with pytest.raises(VerifyError, match=rf"^{__file__}:\d+: law 2 \(step 3, .*ring\.py:\d+\)"):
        algorithm("all_reduce", name="own")(gather.then(scatter, collective="all_reduce")).verify(4)


def test_an_algorithm_without_a_name_has_that_of_its_function() -> None:
    @algorithm("broadcast", "reduce", chunks="1")
    def not_named(schedule: Builder) -> None:
        """Nothing."""

    assert not_named.name == "not_named" and ALGORITHMS["reduce", "not_named"].name == "not_named"
    for program in (ALGORITHMS["reduce", "binomial"].refine(2), lambda _: None):
        with pytest.raises(ScheduleError, match=rf"^{__file__}:\d+: expected name=, because .* has no name of its own"):
            algorithm("reduce")(program)


@pytest.mark.parametrize("name", [None, "three"])
def test_what_is_no_program_is_refused_as_such(name: str | None) -> None:
    with pytest.raises(ScheduleError, match=rf"^{__file__}:\d+: expected a function that writes a schedule, .*found 3"):
        algorithm("reduce", name=name, chunks="1")(3)


def test_a_mistake_for_certain_groups_names_them() -> None:
    @algorithm("all_gather", chunks="P", groups=lambda p: [p])
    def own_equal(schedule: Builder) -> None:
        sizes = schedule.groups
        assert sizes is not None
        with schedule.step():
            schedule.copy(src=0, dst=sizes[0] * len(sizes) - 1, chunk=0)

    assert own_equal.build(6, groups=(3, 3)).num_steps == 1
    with pytest.raises(ScheduleError, match=r"dst is not a rank .*, found 5; in groups of 3, 2$"):
        own_equal.build(5, groups=(3, 2))

    @algorithm("all_gather", chunks="P", dims=lambda p: (p, 1))
    def own_square(schedule: Builder) -> None:
        dims = schedule.dims
        assert dims is not None
        with schedule.step():
            schedule.copy(src=0, dst=dims[0] ** 2 - 1, chunk=0)

    with pytest.raises(ScheduleError, match=r"dst is not a rank .*; on a grid of 3x2$"):
        own_square.build(6, dims=(3, 2))


def test_a_mistake_in_a_composition_names_the_operator_and_its_part() -> None:
    @algorithm("all_gather", name="own_twice", chunks="P")
    def twice(schedule: Builder) -> None:
        for _ in range(2):
            with schedule.step():
                schedule.copy(src=schedule.ranks[:, None], dst=schedule.ranks, chunk=schedule.ranks[:, None])

    @algorithm("all_gather", name="own_io", chunks="P")
    def io(schedule: Builder) -> None:
        blocks: dict[str, Any] = {"src_chunk": 0, "dst_chunk": schedule.ranks[:, None]}
        with schedule.step():
            schedule.copy(
                src=schedule.ranks[:, None], dst=schedule.ranks, **blocks, src_buffer="input", dst_buffer="output"
            )

    with pytest.raises(
        VerifyError, match=r": law 2 .*; in own_twice\.reversed\(\); `hocket show .*:own_back -n 3` draws where\n"
    ):
        algorithm("reduce_scatter", name="own_back")(twice.reversed()).verify(3)
    with pytest.raises(ScheduleError, match=r" \(own_wrong, 3 ranks\): reversed: .*; in own_io\.reversed\(\)"):
        algorithm("all_reduce", name="own_wrong")(io.reversed().then(twice)).build(3)


def test_a_keyword_with_a_mistake_gets_a_suggestion() -> None:
    with pytest.raises(TypeError, match=r"expected arguments name=, chunks=, .*; found nme=; did you mean 'name'"):
        algorithm("all_reduce", nme="own")  # type: ignore[call-arg]


def test_what_is_sent_is_promised_exactly() -> None:
    @algorithm("broadcast", name="own_star", chunks="1", sent="P")
    def star(schedule: Builder) -> None:
        with schedule.step():
            schedule.copy(src=schedule.root, dst=schedule.ranks[schedule.ranks != schedule.root], chunk=0)

    with pytest.raises(VerifyError, match=r"is not exactly what is declared; expected 3, found 2\n"):
        star.verify(3)


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    for content in (b"\xff\xfe", b"x = '\0'"):
        file.write_bytes(content)
        with pytest.raises(ScheduleError, match=rf"^{file}(:\d+)?: (SyntaxError|ValueError): "):
            load(str(file))


def test_a_composition_that_does_not_fit_names_where_it_is_registered() -> None:
    one = algorithm("all_gather", name="fine")(ALGORITHMS["all_gather", "ring"].refine(0))
    with pytest.raises(ScheduleError, match=rf"^{__file__}:\d+ \(fine, 3 ranks\): refine: expected"):
        one.build(3)


def test_threads_that_load_at_once_take_turns(tmp_path: Path) -> None:
    """Each thread gets the algorithm of its own file, and no thread ever misses a built-in one."""
    files = [tmp_path / f"own{i}.py" for i in range(8)]
    for i, file in enumerate(files):
        broken = "" if i % 2 else "import time; time.sleep(0.01); 1 // 0"  # long enough for others to come
        file.write_text(MISTAKES.format(**RIGHT | {"last": broken}).replace('"own"', f'"own{i}"'))
    ended, missed = threading.Event(), []

    def watch() -> None:
        while not ended.is_set():
            if ("all_reduce", "ring") not in ALGORITHMS:
                missed.append("ring")

    def load_one(file: Path) -> str:
        try:
            return " ".join(one.name for one in load(str(file)))
        except ScheduleError:
            return "broken"

    watcher = threading.Thread(target=watch)
    watcher.start()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(load_one, files))
    ended.set()
    watcher.join()
    assert found == [f"own{i}" if i % 2 else "broken" for i in range(8)]
    assert {name for _, name in ALGORITHMS if name.startswith("own")} == {"own1", "own3", "own5", "own7"}
    assert missed == []


def test_an_algorithm_may_be_told_of_groups_or_of_a_grid() -> None:
    @algorithm(
        "all_gather",
        name="told",
        groups=lambda p: (p - p // 2, p // 2) if p > 1 else (1,),
        dims=lambda p: (1, p),
        chunks=lambda p: p,
        steps=lambda p, groups, dims: (len(groups) - 1) * min(dims[-1] - 1, 1),
        sent=lambda p: (p - 1) / p,
    )
    def told(schedule: Builder) -> None:
        """Tells what it was told."""
        seen.append((schedule.groups, schedule.dims))
        p, rank = schedule.num_ranks, schedule.ranks
        with schedule.step():
            schedule.copy(src=rank, dst=(rank + np.arange(1, p)[:, None]) % p, chunk=rank)

    seen: list[object] = []
    told.verify(5)
    told.verify(5, groups=[4, 1], dims=(5, 1), laws=(1, 2))
    assert seen == [((3, 2), (1, 5)), ((4, 1), (5, 1))]
    assert told.build(5, groups=(3, 2)) is told.build(5), "defaults are spelled out"
    assert told.declared(5, dims=(5, 1)).steps == 0 and told.refine(2).build(5, dims=(5, 1)).num_chunks == 10
    for wrong in ((3, 3), (5, 0), (), "ab", (2.5, 2.5), 5):
        with pytest.raises(ValueError, match="whole numbers from 1 whose sum is 5; found"):
            told.build(5, groups=wrong)
    with pytest.raises(ValueError, match="whose product is 5; found"):
        told.build(5, dims=(2, 3))
    with pytest.raises(ValueError, match="expected no groups, which it does not take"):
        ALGORITHMS["all_reduce", "ring"].build(4, groups=(2, 2))


def test_an_algorithm_is_one_line_in_a_notebook() -> None:
    ring = ALGORITHMS["all_reduce", "ring"]
    assert repr(ring) == f"<Algorithm: all_reduce ring ({ring.source})>"
