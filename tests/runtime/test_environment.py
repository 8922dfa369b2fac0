import threading
from dataclasses import replace

import pytest

from hocket.errors import RendezvousError
from hocket.runtime import discover, new_address
from hocket.runtime.ranks.environment import Environment, at_rank_end, rank_scope, rank_variables, torchrun_variables
from hocket.runtime.rendezvous.boards.fixed_address import FixedAddress

HOCKET = {"HOCKET_RANK": "1", "HOCKET_SIZE": "3", "HOCKET_ADDRESS": "meeting"}
SPREAD = {"HOCKET_LOCAL_RANK": "0", "HOCKET_LOCAL_SIZE": "1"}  # the ranks are on several hosts
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
STEP = SLURM | {
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_NODELIST": "hx[01-02],hy",
    "SLURM_STEP_TASKS_PER_NODE": "2,1(x2)",
    "SLURM_NODEID": "2",
    "SLURM_LOCALID": "0",
}
AGENTS = TORCHRUN | {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_USE_AGENT_STORE": "True"}


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
        (
            HOCKET | SPREAD,
            "1 of them on this host, but nothing tells where rank 0 is: HOCKET_ADDRESS is .meeting",
        ),
        (
            TORCHRUN | {"LOCAL_WORLD_SIZE": "2"},
            "USE_AGENT_STORE is not True, .* Set HOCKET_ADDRESS=HOST:PORT",
        ),
        (AGENTS | {"MASTER_PORT": "x"}, "MASTER_PORT is 'x'"),
        (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, "Open MPI does not tell .* `mpirun -x HOCKET_ADDRESS`"),
        (HYDRA | {"MPI_LOCALNRANKS": "1"}, "PMI_FD is not set, so there is no process manager"),
        (HYDRA | {"MPI_LOCALNRANKS": "1", "PMI_FD": "none"}, "PMI_FD is 'none'"),
        (STEP | {"SLURM_STEP_NODELIST": "hx[a"}, "SLURM_STEP_NODELIST: expected a host list .* by HOCKET_ADDRESS"),
        (STEP | {"SLURM_STEP_NODELIST": ""}, "SLURM_STEP_NODELIST is empty"),
        (STEP | {"SLURM_STEP_TASKS_PER_NODE": "2(x"}, r"SLURM_STEP_TASKS_PER_NODE is '2\(x'; expected .* on 3 hosts"),
        (STEP | {"SLURM_NODEID": "3"}, r"this is number 3 \(SLURM_NODEID\)"),
        (HOCKET | {"HOCKET_LOCAL_RANK": "0"}, "HOCKET_LOCAL_SIZE is not set"),
        (HOCKET | SPREAD | {"HOCKET_LOCAL_RANK": "1"}, "HOCKET_LOCAL_RANK is 1, HOCKET_LOCAL_SIZE 1 and HOCKET_SIZE 3"),
        (HOCKET | {"HOCKET_LOCAL_RANK": "0", "HOCKET_LOCAL_SIZE": "4"}, "expected local rank < local size <= size"),
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


def test_children_on_this_host_do_not_inherit_that_the_job_is_on_several() -> None:
    inherited = HOCKET | SPREAD | {"HOCKET_ADDRESS": "hxa:29500"}
    found = discover(variables=inherited | rank_variables(1, 2, new_address()))
    assert (found.local_rank, found.local_size, found.board) == (1, 2, None)


@pytest.mark.parametrize(
    ("variables", "rank", "local_rank", "local_size"),
    [
        (HOCKET, 1, 1, 3),
        (HOCKET | SPREAD, 1, 0, 1),
        (TORCHRUN | {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}, 2, 0, 2),
        (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, 1, 0, 1),
        (STEP, 3, 0, 1),
        (STEP | {"SLURM_PROCID": "1", "SLURM_NODEID": "0", "SLURM_LOCALID": "1"}, 1, 1, 2),
        (STEP | {"PMI_RANK": "3", "PMI_SIZE": "4"}, 3, 0, 1),  # srun --mpi=pmi2
    ],
)
def test_a_host_and_port_lets_the_ranks_be_on_several_hosts(
    variables: dict[str, str], rank: int, local_rank: int, local_size: int
) -> None:
    found = discover(variables=variables | {"HOCKET_ADDRESS": "hxa:29500"})
    assert (found.rank, found.local_rank, found.local_size) == (rank, local_rank, local_size)
    assert found.board == FixedAddress("hxa", 29500, "HOCKET_ADDRESS")


def test_ranks_of_a_host_meet_at_a_name_that_fits_however_long_the_host_and_port_are() -> None:
    host = ".".join(["x" * 60] * 4)
    names = {discover(0, 2, f"{host}:{port}", variables={}).address for port in (1, 2, 2)}
    assert len(names) == 2 and all(name.startswith("hocket-") for name in names)
    assert discover(0, 2, "[FD77::1]:1", variables={}).address == discover(1, 2, "[fd77:0::1]:1", variables={}).address


@pytest.mark.parametrize(
    ("variables", "where"),
    [
        (AGENTS, "torchrun's store at MASTER_ADDR 127.0.0.1, MASTER_PORT 29500"),
        (HYDRA | {"MPI_LOCALNRANKS": "1", "PMI_FD": "7"}, "the process manager of MPI (PMI_FD 7)"),
        (STEP, "Slurm's first host hx01, ports 28704 to 28719 (step 77.0)"),
    ],
)
def test_each_starter_has_a_board_for_ranks_on_several_hosts(variables: dict[str, str], where: str) -> None:
    found = discover(variables=variables)
    assert found.board is not None and found.board.where == where
    # What a user says comes before it, and needs nothing of the starter.
    fixed = FixedAddress("hxa", 29500, "HOCKET_ADDRESS")
    assert discover(variables=variables | {"HOCKET_ADDRESS": "hxa:29500"}).board == fixed


def test_agents_that_count_restarts_differently_are_of_one_job() -> None:
    addresses = {discover(variables=AGENTS | {"TORCHELASTIC_RESTART_COUNT": count}).address for count in "01"}
    assert len(addresses) == 1


def test_an_argument_tells_host_and_port_before_a_variable_does() -> None:
    variables = HOCKET | SPREAD | {"HOCKET_ADDRESS": "hxa:29500"}
    assert discover(address="hxb:29501", variables=variables).board == FixedAddress("hxb", 29501, "address=")
    assert discover(0, 2, "hxb:29501", variables=variables).board == FixedAddress("hxb", 29501, "address=")
    assert discover(0, 2, variables=variables).board == FixedAddress("hxa", 29500, "HOCKET_ADDRESS")
    # A name alone makes another meeting of these ranks. With a rank and a size it is all there is: one host.
    again = discover(address="again", variables=variables)
    assert (again.address, again.board) == ("again", FixedAddress("hxa", 29500, "HOCKET_ADDRESS"))
    assert discover(0, 2, "again", variables=variables).board is None


def test_one_rank_needs_no_board() -> None:
    assert discover(variables={"HOCKET_RANK": "0", "HOCKET_SIZE": "1", "HOCKET_ADDRESS": "hxa:29500"}).board is None
    assert discover(0, 1, "hxa:29500", variables={}).board is None


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
