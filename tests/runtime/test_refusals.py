"""Arguments that a method of a communicator does not take: the error has its names for those of MPI and PyTorch."""

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.runtime.communicator.refusals import METHODS_ELSEWHERE, NAMES_ELSEWHERE, NAMES_OF_MODULES

Comm = hocket.Communicator
METHODS = [  # that have arguments
    name
    for name, method in inspect.getmembers(Comm, callable)
    if not name.startswith("_") and len(inspect.signature(method).parameters) > 1
]
X = np.ones(2)


@pytest.fixture(scope="module")
def comm() -> Iterator[Comm]:
    with hocket.init(0, 1) as comm:
        yield comm


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(TypeError) as caught:
        call()
    assert caught.value.__cause__ is caught.value.__context__ is None
    return str(caught.value)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            lambda comm: comm.send(X, dest=1),
            "send has no argument 'dest'; did you mean 'dst'? The call is send(x, dst, ",
        ),
        (
            lambda comm: comm.recv(X, source=0),
            "recv has no argument 'source'; did you mean 'src'? The call is recv(x, ",
        ),
        (lambda comm: comm.broadcast(X, src=0), "broadcast has no argument 'src'; did you mean 'root'? The call is "),
        (
            lambda comm: comm.reduce(X, dst=0),
            "reduce has no argument 'dst'; did you mean 'root'? The call is reduce(x, ",
        ),
        (lambda comm: comm.isend(tensor=X, dst=0), "isend has no argument 'tensor'; did you mean 'x'? The call is "),
        (
            lambda comm: comm.all_reduce(X, oop="sum"),
            "all_reduce has no argument 'oop'; did you mean 'op'? The call is ",
        ),
        (lambda comm: comm.recv(X, status=None), "argument 'status': a receive returns (x, source, tag). The call is "),
        (
            lambda comm: comm.barrier(group=None),
            "communicator that split or subgroup returns. The call is barrier(*, alg",
        ),
        (lambda comm: comm.batch(p2p_op_list=[]), "batch has no argument 'p2p_op_list'; did you mean 'messages'? The "),
        (
            lambda comm: comm.broadcast_object("x", src=0),
            "broadcast_object has no argument 'src'; did you mean 'root'? ",
        ),
        (
            lambda comm: comm.cartesian({"a": 1}, periods="a"),
            "argument 'periods'; did you mean 'periodic'? The call is ",
        ),
        (
            lambda comm: comm.sendrecv(sendbuf=X, dest=0, recvbuf=X, source=0),
            "sendrecv has no argument 'sendbuf'; did you mean 'x'? "
            "sendrecv has no argument 'dest'; did you mean 'dst'? "
            "sendrecv has no argument 'recvbuf'; did you mean 'out'? "
            "sendrecv has no argument 'source'; did you mean 'src'? "
            "The call is sendrecv(x, dst, out, src=-1, *, tag=0, recv_tag=None, timeout=None)",
        ),
        (
            lambda comm: comm.all_reduce(X, X),
            "all_reduce takes x by position, found 2: pass the others by name, such as out=. The call is "
            "all_reduce(x, *, op='sum', out=None, ",
        ),
        (
            lambda comm: comm.barrier(1),
            "barrier takes nothing by position, found 1: pass the others by name. The call is",
        ),
        (
            lambda comm: comm.send(X),
            "send: missing 1 required positional argument: 'dst'. The call is send(x, dst, *, ",
        ),
        (lambda comm: comm.send(X, 0, x=X), "send: got multiple values for argument 'x'. The call is send(x, dst, *, "),
        (lambda comm: comm.send(X, 1, dest=1), "send has no argument 'dest'. The call is send(x, dst, *, tag=0, "),
    ],
)
def test_the_error_says_what_the_method_takes(call: Callable[[Comm], object], told: str, comm: Comm) -> None:
    comm.all_reduce(X)  # what is repeated is refused in the same way
    assert told in refused(lambda: call(comm))


@pytest.mark.parametrize("name", METHODS)
def test_every_method_says_how_it_is_called(name: str, comm: Comm) -> None:
    text = refused(lambda: getattr(comm, name)(frobnicate=1))
    assert text.startswith(f"{name} has no argument 'frobnicate'. The call is {name}("), text
    taken = inspect.signature(getattr(comm, name)).parameters
    assert all(re.search(rf"[(, ]{one}[,=)]", text) for one in taken), text


def test_each_name_of_the_table_is_that_of_an_argument(comm: Comm) -> None:
    for here, elsewhere in NAMES_ELSEWHERE.items():
        taking = [name for name in METHODS if here in inspect.signature(getattr(comm, name)).parameters]
        for unknown in elsewhere:
            told = [refused(lambda name=name, unknown=unknown: getattr(comm, name)(**{unknown: 1})) for name in taking]
            assert any(f"no argument {unknown!r}; did you mean {here!r}?" in text for text in told), (here, unknown)


class Strange:
    """What cannot be pickled, because that makes a wrong call."""

    def __reduce__(self) -> Any:
        return refused(root=1)  # type: ignore[call-arg]


def test_a_type_error_inside_the_method_stays_as_it_is(comm: Comm) -> None:
    for call, told in (
        (lambda: comm.send_object(Strange(), 0), r"refused\(\) got an unexpected keyword argument 'root'"),
        (lambda: comm.all_reduce(X, op=lambda a: a), r"takes 1 positional argument but 2 were given"),
        (lambda: comm.all_reduce(3), "expected an array"),
        (lambda: comm.batch(3), "expected a list"),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError, match=told) as caught:
            call()
        assert "The call is" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Get_rank", "; did you mean 'rank'?"),
        ("world_size", "; did you mean 'size'?"),
        ("bcast", "; did you mean 'broadcast'?"),
        ("Bcast", "; did you mean 'broadcast'?"),
        ("Allreduce", "; did you mean 'all_reduce'?"),
        ("Iallreduce", "; did you mean 'all_reduce(..., async_op=True)'?"),
        ("ibcast", "; did you mean 'broadcast(..., async_op=True)'?"),
        ("Isend", "; did you mean 'isend'?"),
        ("Free", "; did you mean 'close'?"),
        ("al_reduce", "; did you mean 'all_reduce'?"),
        ("quite_unknown", ""),
        ("_unknown", ""),
    ],
)
def test_an_attribute_of_mpi_or_pytorch_is_told_its_name_here(name: str, told: str, comm: Comm) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(comm, name)
    assert str(caught.value) == f"'Communicator' object has no attribute {name!r}{told}"
    assert not hasattr(comm, name) and caught.value.obj is None


def test_no_call_that_would_be_refused_is_advised(comm: Comm) -> None:
    for name in (name for name in dir(comm) if not name.startswith("_") and not hasattr(comm, f"i{name}")):
        with pytest.raises(AttributeError) as caught:
            getattr(comm, f"i{name}")
        call = getattr(comm, name)
        takes = callable(call) and "async_op" in inspect.signature(call).parameters
        assert (f"{name}(..., async_op=True)" in str(caught.value)) == takes, caught.value


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("SUM", '; did you mean op="sum"?'),
        ("ReduceOp", '; did you mean op="sum"?'),
        ("MAX", '; did you mean op="max"?'),
        ("COMM_WORLD", "; did you mean comm = hocket.init()?"),
        ("get_rank", "; did you mean comm.rank, of comm = hocket.init()?"),
        ("quite_unknown", ""),
        ("__wrapped__", ""),
    ],
)
def test_a_name_of_their_modules_is_told_what_to_write(name: str, told: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(hocket, name)
    assert str(caught.value) == f"module 'hocket' has no attribute {name!r}{told}"


def test_the_tables_lead_only_from_what_does_not_exist_to_what_does(comm: Comm) -> None:
    for here, elsewhere in METHODS_ELSEWHERE.items():
        assert hasattr(comm, here) and not any(hasattr(comm, name) for name in elsewhere), here
    for here, elsewhere in NAMES_OF_MODULES.items():
        assert not any(hasattr(hocket, name) for name in elsewhere), here
