"""The coordinator's errors: each says what was expected and what to do; no rank waits for ever, or without a word."""

import re
import threading
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from hocket.errors import CollectiveMismatch, CollectiveTimeout, CommunicationError, PeerAborted
from hocket.training import Coordinator
from hocket.training.buckets.slots import Slots
from hocket.training.coordinator import waiting
from tests.training.test_coordinator import NAMES, arrays_of, produce, register
from tests.training.test_data import on_ranks
from tests.waiting import wait_until


def test_bad_names_and_calls_out_of_turn() -> None:
    def program(comm: Any) -> None:
        arrays = arrays_of(comm, ("weight", "bias"))
        engine = Coordinator(comm)
        for call in (lambda: engine.submit("weight"), engine.flush, engine.join):
            with pytest.raises(RuntimeError, match="no tensor is registered; call register"):
                call()
        register(engine, arrays)
        with pytest.raises(ValueError, match="a name, text that is not registered yet, found 'bias'"):
            engine.register("bias", arrays["bias"])
        with pytest.raises(ValueError, match="a name, text that is not registered yet, found 7"):
            engine.register(7, arrays["bias"])  # type: ignore[arg-type]
        views: list[Any] = []
        engine.register("view", np.zeros(2), moved=views.append)
        engine.prepare()
        with pytest.raises(ValueError, match="found 'wieght'; did you mean 'weight'"):
            engine.submit("wieght")
        with pytest.raises(ValueError, match="found 'x'"):
            engine.present("x")
        work = engine.submit("weight")
        with pytest.raises(RuntimeError, match="round 0 is not over on this rank; call flush"):
            work.wait()
        engine.submit("view")
        with pytest.raises(RuntimeError, match="'view' was submitted in this round; flush"):
            engine.submit("view")
        with pytest.raises(RuntimeError, match="'late' came in the middle of a round"):
            engine.register("late", np.zeros(1))
        with pytest.raises(RuntimeError, match="join: round 0 is not over on this rank; call flush"):
            engine.join()
        comm.barrier()  # none of these errors has broken anything
        engine.flush().wait()
        assert arrays["weight"][0] == 1 and engine.present("view") == 2
        engine.close()
        engine.close()
        for call in (lambda: engine.submit("weight"), engine.flush, engine.prepare):
            with pytest.raises(CommunicationError, match="Coordinator: it is closed"):
                call()

    on_ranks(program, 2)


@pytest.mark.parametrize("argument", ["bucket_bytes", "first_bytes"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "1"])
def test_bad_sizes_are_refused_before_ranks_meet(argument: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"Coordinator: expected {argument} of at least 1 byte, found {value!r}"):
        Coordinator(None, **{argument: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("x", "op", "error", "message"),
    [
        (np.zeros(2), "max", ValueError, "expected op 'sum' or 'avg' for 'w', found 'max'"),
        (np.zeros(2, bool), "sum", TypeError, "expected 'w' in a type that ranks can sum and count in, found bool"),
        (np.zeros(2, "datetime64[s]"), "sum", TypeError, "a type that ranks can sum and count in, found datetime64"),
        (np.zeros(2, ml_dtypes.float8_e5m2), "sum", TypeError, "can sum and count in, found float8_e5m2"),
        (np.zeros(2, np.int32), "avg", TypeError, "'w' is int32, which has no average; use op='sum'"),
        ([1.0, 2.0], "sum", TypeError, r"expected 'w' as a NumPy array or a tensor, found \[1.0, 2.0\]"),
        (np.zeros(2, np.int8), "sum", ValueError, "'w' is int8, which counts to 127; use a wider type"),
        (torch.zeros(2, dtype=torch.bfloat16), "sum", ValueError, "'w' is bfloat16, which counts to 256"),
    ],
)
def test_tensors_that_cannot_be_summed_are_refused(x: Any, op: str, error: Any, message: str) -> None:
    class Many:
        """A communicator of 300 ranks, which no test starts."""

        size = 300

    slots = Slots(Many(), "fast")  # type: ignore[arg-type]
    with pytest.raises(error, match=message):
        slots.new("w", x, op, None)
    assert slots.new("w", np.zeros((2, 3), np.float16), "avg", None).tensor.shape == (2, 3)


DIFFERENT: list[tuple[str, Callable[[int], tuple[Any, ...]], dict[int, Any], str]] = [
    ("name", lambda rank: ("v" if rank == 1 else "w", np.zeros(2), "sum"), {0: None, 1: "v", 2: None}, "on rank 1 and"),
    ("shape", lambda rank: ("w", np.zeros((rank == 2) + 2), "sum"), {0: (2,), 1: (2,), 2: (3,)}, "differs in shape"),
    (
        "dtype",
        lambda rank: ("w", np.zeros(2, np.float64 if rank else np.float32), "sum"),
        {0: "float32", 1: "float64", 2: "float64"},
        "differs in dtype: float32 on rank 0",
    ),
    ("op", lambda rank: ("w", np.zeros(2), "avg" if rank else "sum"), {0: "sum", 1: "avg", 2: "avg"}, "differs in op"),
]


@pytest.mark.parametrize(("field", "tensor", "values", "message"), DIFFERENT, ids=[row[0] for row in DIFFERENT])
@pytest.mark.parametrize("is_late", [False, True])
def test_tensors_that_differ_are_refused_on_every_rank(
    field: str, tensor: Any, values: dict[int, Any], message: str, is_late: bool
) -> None:
    def program(comm: Any) -> str:
        engine = Coordinator(comm)
        if is_late:
            arrays = arrays_of(comm)
            register(engine, arrays)
            produce(engine, arrays, NAMES, 1)
        engine.register(*tensor(comm.rank))
        with pytest.raises(CollectiveMismatch, match=message) as first:
            engine.prepare()
        assert (first.value.field, first.value.values) == (field, values)
        with pytest.raises(CollectiveMismatch) as again:
            engine.flush()
        assert again.value is first.value
        engine.close()
        comm.barrier()  # the communicator that the coordinator was made from goes on
        return str(first.value)

    assert len(set(on_ranks(program, 3))) == 1


def test_close_with_pending_tensors_names_them_and_tells_the_others() -> None:
    def program(comm: Any) -> str:
        arrays = arrays_of(comm)
        engine = Coordinator(comm)
        register(engine, arrays)
        engine.prepare()
        comm.barrier()  # so that all ranks are in the round
        if comm.rank == 1:
            for name in NAMES:
                engine.submit(name)
            with pytest.raises(RuntimeError, match=r"closed before a, b, c and 2 tensors more were done; flush\(\)"):
                engine.close()
            return "closed"
        with pytest.raises(PeerAborted, match="its coordinator was closed before a, b, c and 2") as caught:
            produce(engine, arrays, NAMES, 1)
        assert caught.value.rank == 1
        engine.close()
        return "told"

    assert on_ranks(program, 3) == ["told", "closed", "told"]


@pytest.mark.parametrize("num_rounds", [0, 5])
def test_an_exception_of_one_rank_is_told_to_ranks_that_wait(num_rounds: int) -> None:
    """In a round that is negotiated, and in a locked one."""

    def program(comm: Any) -> None:
        arrays = arrays_of(comm)
        with Coordinator(comm) as engine:
            register(engine, arrays)
            for _ in range(num_rounds):
                produce(engine, arrays, NAMES, 1)
            engine.submit("a")
            together.wait()  # all ranks are in this round
            if comm.rank == 2:
                raise ZeroDivisionError("of rank 2")
            try:
                engine.flush().wait()
            except PeerAborted as error:
                told.append((comm.rank, error.rank, "ZeroDivisionError: of rank 2" in str(error)))
                with pytest.raises(PeerAborted):
                    engine.submit("b")
                raise
            except BaseException as error:
                told.append(repr(error))
                raise

    told: list[Any] = []
    together = threading.Barrier(3)
    with pytest.raises(ZeroDivisionError, match="of rank 2"):
        on_ranks(program, 3)
    assert sorted(told) == [(0, 2, True), (1, 2, True)]


@pytest.mark.parametrize("num_rounds", [1, 5])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_rank_that_closes_without_joining_ends_the_others_at_once(num_rounds: int, rank: int) -> None:
    """In a round that is negotiated, and in a locked one."""

    def program(comm: Any) -> None:
        arrays = arrays_of(comm)
        with Coordinator(comm) as engine:
            register(engine, arrays)
            for _ in range(num_rounds):
                produce(engine, arrays, NAMES, 1)
            if comm.rank == rank:
                return
            with pytest.raises(PeerAborted) as caught:
                produce(engine, arrays, NAMES, 1)
            told.append((comm.rank, caught.value.rank))
            with pytest.raises(PeerAborted):
                engine.submit("a")

    told: list[tuple[int, int]] = []
    on_ranks(program, 3)
    assert sorted(told) == [(one, rank) for one in range(3) if one != rank]


@pytest.mark.parametrize("num_rounds", [1, 5])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_registers_alone_ends_with_an_error_on_all_ranks(num_rounds: int, rank: int) -> None:
    def program(comm: Any) -> None:
        comm.configure(timeout=1.0)
        arrays = arrays_of(comm)
        with Coordinator(comm) as engine:
            register(engine, arrays)
            for _ in range(num_rounds):
                produce(engine, arrays, NAMES, 1)
            if comm.rank == rank:
                engine.register("alone", np.zeros(1))
            try:
                produce(engine, arrays, NAMES, 1)
            except (PeerAborted, CollectiveMismatch, CollectiveTimeout):
                failed.append(comm.rank)
                raise

    failed: list[int] = []
    with pytest.raises((PeerAborted, CollectiveMismatch, CollectiveTimeout)):
        on_ranks(program, 3)
    assert sorted(failed) == [0, 1, 2]


# --- a rank that is late ---------------------------------------------------------------------------------------------

LATE: list[tuple[int, tuple[str, ...], str]] = [
    (0, (), "rank 2 has not entered a round"),
    (0, ("d", "b"), r"rank 2 submitted b \d\.\d s ago and has not flushed"),
    (5, (), r"rank 2 ended round 4 \d\.\d s ago and has not entered round 5"),
    (5, ("a",), r"rank 2 submitted a \d\.\d s ago and has not flushed"),
]


@pytest.mark.parametrize(("num_rounds", "submitted", "did"), LATE)
def test_every_rank_that_waits_names_tensors_and_the_late_rank_and_what_it_did_last(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], num_rounds: int, submitted: Any, did: str
) -> None:
    """In a round that is negotiated, and in a locked one; the late rank goes on once both others have told of it."""

    def program(comm: Any) -> None:
        arrays = arrays_of(comm)
        with Coordinator(comm) as engine:
            register(engine, arrays)
            engine.prepare()
            for _ in range(num_rounds):
                produce(engine, arrays, NAMES, 1)
            if comm.rank == 2:
                for name in submitted:
                    engine.submit(name)
                wait_until(lambda: first_lines().keys() == {0, 1})
                for name in set(NAMES) - set(submitted):
                    engine.submit(name)
                engine.flush().wait()
            else:
                produce(engine, arrays, NAMES, 1)

    def first_lines() -> dict[int, str]:
        told.append(capsys.readouterr().err)
        lines = "".join(told).splitlines()
        return {int(line.split()[2]): line for line in reversed(lines)}

    told: list[str] = []
    monkeypatch.setattr(waiting, "STALL_SECONDS", 0.3)
    on_ranks(program, 3)
    for rank, line in first_lines().items():
        start = rf"hocket: rank {rank} has waited \d s in round {num_rounds} of its coordinator for rank 2, "
        assert re.fullmatch(f"{start}and has not got a, b, c and 2 tensors more; {did}", line), line
