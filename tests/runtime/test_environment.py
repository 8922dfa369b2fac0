import threading
from dataclasses import replace

import pytest

from hocket.errors import RendezvousError
from hocket.runtime import discover, new_address
from hocket.runtime.ranks.environment import Environment, at_rank_end, rank_scope, rank_variables, torchrun_variables

HOCKET = {"HOCKET_RANK": "1", "HOCKET_SIZE": "3", "HOCKET_ADDRESS": "meeting"}
TORCHRUN = {
    "RANK": "2",
    "LOCAL_RANK": "2",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-host-12@1",
}
HYDRA = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}
SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_LOCALID": "3",
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
}


@pytest.mark.parametrize(
    ("variables", "source", "rank", "size"),
    [
        ({}, "alone", 0, 1),
        (HOCKET, "HOCKET", 1, 3),
        ({"HOCKET_RANK": "0", "HOCKET_SIZE": "1"}, "HOCKET", 0, 1),
        (TORCHRUN, "torchrun", 2, 4),
        (OPEN_MPI, "MPI", 1, 2),
        (HYDRA, "MPI", 0, 2),
        (SLURM, "Slurm", 3, 4),
        # A batch script has SLURM_PROCID too, but is not a task of a step.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "77"}, "alone", 0, 1),
        # The first in the order of precedence wins.
        (SLURM | OPEN_MPI | TORCHRUN | HOCKET, "HOCKET", 1, 3),
        (SLURM | OPEN_MPI | TORCHRUN, "torchrun", 2, 4),
        (SLURM | OPEN_MPI, "MPI", 1, 2),
    ],
)
def test_the_starter_is_recognised(variables: dict[str, str], source: str, rank: int, size: int) -> None:
    found = discover(variables=variables)
    assert (found.source, found.rank, found.size) == (source, rank, size)
    assert (found.local_rank, found.local_size) == (rank, size)


def test_arguments_come_first() -> None:
    found = discover(0, 2, "here", timeout=3.0, variables=HOCKET)
    assert found == Environment(0, 2, "here", "arguments", 0, 2, 3.0)


def test_arguments_can_use_the_address_of_the_starter() -> None:
    assert discover(0, 2, variables=HOCKET).address == "meeting"


def test_an_address_alone_makes_another_meeting_of_the_same_ranks() -> None:
    found = discover(address="elsewhere", variables=HOCKET)
    assert (found.rank, found.size, found.address) == (1, 3, "elsewhere")


@pytest.mark.parametrize("variables", [TORCHRUN, OPEN_MPI, HYDRA, SLURM])
def test_all_ranks_of_a_job_derive_one_address(variables: dict[str, str]) -> None:
    names = {name for name in variables if "RANK" in name or "PROCID" in name or "LOCALID" in name}
    other = variables | {name: "0" for name in names if "NRANKS" not in name}
    assert discover(variables=variables).address == discover(variables=other).address


@pytest.mark.parametrize(
    ("variables", "changed"),
    [
        (TORCHRUN, {"MASTER_PORT": "29501"}),
        (TORCHRUN, {"TORCHELASTIC_RESTART_COUNT": "1"}),
        (TORCHRUN, {"TORCHELASTIC_RUN_ID": "another"}),
        (OPEN_MPI, {"PMIX_NAMESPACE": "prterun-host-13@1"}),
        (SLURM, {"SLURM_STEP_ID": "1"}),
    ],
)
def test_another_job_has_another_address(variables: dict[str, str], changed: dict[str, str]) -> None:
    assert discover(variables=variables).address != discover(variables=variables | changed).address


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"HOCKET_RANK": "0"}, "HOCKET_SIZE is not set"),
        ({"HOCKET_RANK": "0", "HOCKET_SIZE": "2"}, "HOCKET_ADDRESS is not set"),
        (HOCKET | {"HOCKET_RANK": "three"}, "HOCKET_RANK is 'three'"),
        (HOCKET | {"HOCKET_RANK": "3"}, "rank 3 of 3"),
        (HOCKET | {"HOCKET_SIZE": "0"}, "rank 1 of 0"),
        (HOCKET | {"HOCKET_ADDRESS": "x" * 108}, "1 to 107 bytes"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_PORT is not set"),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "2"}, "several hosts are not supported yet"),
        (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, "several hosts are not supported yet"),
        (SLURM | {"SLURM_STEP_NUM_NODES": "2"}, "several hosts are not supported yet"),
    ],
)
def test_contradictions_are_errors(variables: dict[str, str], words: str) -> None:
    with pytest.raises(RendezvousError, match=words):
        discover(variables=variables)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"rank": 0}, ValueError, "give both or neither"),
        ({"size": 2}, ValueError, "give both or neither"),
        ({"rank": 2, "size": 2}, ValueError, "0 <= rank < size"),
        ({"rank": -1, "size": 2}, ValueError, "0 <= rank < size"),
        ({"rank": 0, "size": 0}, ValueError, "0 <= rank < size"),
        ({"rank": 0.0, "size": 2}, TypeError, "rank is 0.0"),
        ({"rank": 0, "size": True}, TypeError, "size is True"),
        ({"rank": 0, "size": 2}, ValueError, "give address="),
        ({"rank": 0, "size": 2, "address": 5}, TypeError, "address is 5; expected text"),
        ({"address": b"here"}, TypeError, "address is b'here'"),
    ],
)
def test_bad_arguments(arguments: dict[str, object], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        discover(**arguments, variables={})  # type: ignore[arg-type]


def test_child_variables_are_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    address = new_address()
    variables = rank_variables(2, 5, address)
    assert int(variables["OMP_NUM_THREADS"]) >= 1
    assert discover(variables=variables) == Environment(2, 5, address, "HOCKET", 2, 5)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert "OMP_NUM_THREADS" not in rank_variables(2, 5, address)
    found = discover(variables=torchrun_variables(2, 5, ("127.0.0.1", 29500), (2, 5)))
    assert found == Environment(2, 5, found.address, "torchrun", 2, 5)


def test_ranks_of_a_host_share_its_cores_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    variables = rank_variables(6, 8, "node0:1234", (2, 4))
    assert {variables[f"HOCKET_LOCAL_{name}"] for name in ("RANK", "SIZE")} == {"2", "4"}
    assert variables["OMP_NUM_THREADS"] == "2"
    torchrun = torchrun_variables(6, 8, ("node0", 29500), (2, 4))
    assert (torchrun["LOCAL_RANK"], torchrun["LOCAL_WORLD_SIZE"], torchrun["MASTER_ADDR"]) == ("2", "4", "node0")


def test_fresh_addresses_differ() -> None:
    assert new_address() != new_address()


def test_a_scope_gives_its_thread_a_place_and_no_other() -> None:
    place = Environment(1, 2, "threads meet", "threads", 1, 2)
    elsewhere: list[str] = []
    with rank_scope(place):
        assert discover(variables=HOCKET) == place
        assert discover(variables=HOCKET, timeout=5.0) == replace(place, timeout_seconds=5.0)
        assert discover(0, 1, "mine", variables={}).source == "arguments"
        thread = threading.Thread(target=lambda: elsewhere.append(discover(variables=HOCKET).source))
        thread.start()
        thread.join()
    assert elsewhere == ["HOCKET"]
    assert discover(variables={}).source == "alone"


def test_a_scope_may_give_all_threads_of_the_process_a_place() -> None:
    whole, own = (Environment(rank, 2, "ranks meet", "threads", rank, 2) for rank in range(2))
    found: list[Environment] = []
    with rank_scope(whole, whole_process=True):
        thread = threading.Thread(target=lambda: found.append(discover(variables=HOCKET)))
        thread.start()
        thread.join()
        with rank_scope(own):
            assert discover(variables=HOCKET) == own
        assert discover(variables=HOCKET) == whole
    assert found == [whole]
    assert discover(variables={}).source == "alone"


def test_callbacks_hear_how_the_rank_ended() -> None:
    place, heard = Environment(0, 1, "x", "threads", 0, 1), []
    assert not at_rank_end(heard.append)
    with rank_scope(place):
        assert at_rank_end(heard.append)
    failure = ValueError("the rank failed")
    with pytest.raises(ValueError, match="the rank failed"), rank_scope(place):
        at_rank_end(heard.append)
        raise failure
    assert heard == [None, failure]


def test_all_callbacks_run_the_last_one_first() -> None:
    order: list[int] = []

    def fail(_: BaseException | None) -> None:
        raise RuntimeError("closing failed")

    with pytest.raises(RuntimeError, match="closing failed"), rank_scope(Environment(0, 1, "x", "threads", 0, 1)):
        at_rank_end(lambda _: order.append(1))
        at_rank_end(fail)
        at_rank_end(lambda _: order.append(3))
    assert order == [3, 1]
    # An error while closing does not replace the error of the rank.
    with pytest.raises(KeyError), rank_scope(Environment(0, 1, "x", "threads", 0, 1)):
        at_rank_end(fail)
        raise KeyError
