"""Plans that MSCCL++'s executor would refuse, or carry out otherwise than they read."""

import json

import pytest

from hocket.algorithms import ALGORITHMS
from hocket.errors import ScheduleError
from hocket.schedule import mscclpp
from tests.schedule.mscclpp_plans import execution_plan


def test_offsets_have_32_bits() -> None:
    """The executor refuses a call of more bytes; without the limit, offsets would begin again at 0."""
    for kind in ("all_gather", "all_reduce", "reduce_scatter"):
        plan = json.loads(mscclpp.write(ALGORITHMS[kind, "ring"].build(5)))
        gpu = plan["gpus"][0]
        whole = max(gpu["input_chunks"], gpu["output_chunks"])
        most = plan["max_message_size"] // whole * max(whole, *(one["scratch_chunks"] for one in plan["gpus"]))
        assert (1 << 32) - 64 <= most < 1 << 32


def test_plans_that_differ_have_different_names() -> None:
    """The executor takes what it has made for a plan of the same name."""
    tree = ALGORITHMS["broadcast", "binomial"]
    plans = [json.loads(mscclpp.write(tree.build(p, root), "tree")) for p, root in ((3, 0), (3, 1), (4, 0))]
    assert len({plan["name"] for plan in plans}) == 3
    assert all(plan["name"].startswith("tree_") for plan in plans)


def test_too_many_ops_are_refused_before_the_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("hocket.schedule.mscclpp.plan_writer.verify")
    with pytest.raises(ScheduleError, match=r"at most 65536 ops in all; found 97536 or more; take fewer ranks"):
        mscclpp.write(ALGORITHMS["all_reduce", "ring"].build(128))


def test_blocks_of_others_are_named_in_the_whole_vector() -> None:
    """In place, the executor takes for the place of another GPU's input that of the input of its own GPU."""
    gpus = [
        [([f"memory {1 - gpu}"], ["signal 0", "wait 0", "nop", put, "nop", "signal 0", "wait 0"])]
        for gpu, put in enumerate(("put o0 > 1:o0", "put o1 > 0:o1"))
    ]
    plan = execution_plan("allgather", (1, 2, 0), gpus)
    assert mscclpp.read(json.dumps(plan)).num_rows == 2
    plan["gpus"][0]["remote_buffers"][0]["type"] = "i"
    with pytest.raises(ScheduleError, match=r"op 3 \(put\): expected o of gpu 1, because in place .*; found i, b"):
        mscclpp.read(json.dumps(plan))


def test_a_get_has_one_index() -> None:
    """The executor adds the index of the source to the destination, and the other way round."""
    ready = ["signal 0", "wait 0", "nop"]
    gpus = [[([f"memory {1 - gpu}"], [*ready, f"get {1 - gpu}:i0 > s1"])] for gpu in (0, 1)]
    plan = execution_plan("allreduce", (1, 1, 2), gpus)
    with pytest.raises(ScheduleError, match=r"op 3 \(get\): expected the same index .*; found \[0\] and \[1\]"):
        mscclpp.read(json.dumps(plan))


def test_plans_of_older_versions_are_told_apart() -> None:
    old = {"id": 0, "inputChunks": 1, "outputChunks": 1, "scratchChunks": 2, "threadblocks": [], "channels": []}
    plan = {"name": "old", "collective": "allreduce", "protocol": "Simple", "inplace": True, "gpus": [old]}
    with pytest.raises(ScheduleError, match=r"gpu 0: expected input_chunks; found inputChunks, as in plans of older"):
        mscclpp.read(json.dumps(plan))
