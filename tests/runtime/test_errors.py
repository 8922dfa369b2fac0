"""The classes of errors, as programs catch them and as processes send them to each other."""

import pickle
import re
from typing import Any

import numpy as np
import pytest

import hocket
from hocket import errors

MADE: list[tuple[type[errors.HocketError], dict[str, Any]]] = [
    (errors.VerifyError, {"law": 2, "step": 1, "expected": 3}),
    (errors.RendezvousError, {"missing": (1,)}),
    (errors.CollectiveMismatch, {"field": "count", "values": {0: 1, 1: 2}, "sequence": 3}),
    (errors.CollectiveTimeout, {"missing": (1, 2), "seconds": 0.5, "sequence": 3}),
    (errors.PeerDied, {"rank": 1}),
    (errors.PeerAborted, {"rank": 1, "reason": "a reason"}),
    (errors.ResourceError, {"errno": 12, "call": "mmap"}),
]


@pytest.mark.parametrize(("kind", "fields"), MADE)
def test_an_error_arrives_with_its_words_and_fields(kind: type[errors.HocketError], fields: dict[str, Any]) -> None:
    sent = kind("what happened", **fields)
    arrived = pickle.loads(pickle.dumps(sent))
    assert type(arrived) is kind and str(arrived) == str(sent) and "what happened" in str(sent)
    assert {name: getattr(arrived, name) for name in fields} == fields


def test_a_call_that_is_late_is_a_timeout_error_of_python() -> None:
    with hocket.init(0, 1) as comm:
        work = comm.irecv(np.empty(1), 0)
        with pytest.raises(TimeoutError, match="irecv on rank 0 was not done") as caught:
            work.wait(0)
        comm.send(np.ones(1), 0)
        work.wait()
    assert isinstance(caught.value, errors.CollectiveTimeout) and caught.value.missing == (0,)


def test_the_tree_of_errors_names_every_class_and_its_base() -> None:
    lines = re.findall(r"^ {4}([ |`-]*)([A-Z]\w+)", errors.__doc__ or "", re.MULTILINE)
    path: dict[int, type] = {}
    for branch, name in lines:
        one = getattr(errors, name)
        path[len(branch)] = one
        assert not branch or one.__bases__[0] is path[len(branch) - 4], name
    classes = {name for name, one in vars(errors).items() if isinstance(one, type) and issubclass(one, Exception)}
    assert {name for _, name in lines} == classes
