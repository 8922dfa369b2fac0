"""What programs do by mistake: it is refused or put right, and never silently wrong."""

import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hocket.errors import CollectiveMismatch, CommunicationError, PeerAborted
from hocket.training import Coordinator, DataParallel, Momentum, ParameterServer, Sharded, half
from tests.training.test_data import on_ranks


class Heads(nn.Module):
    """A trunk with two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.heads = nn.Linear(3, 3), nn.ModuleList(nn.Linear(3, 1) for _ in range(2))

    def forward(self, x: Any, head: int) -> Any:
        return self.heads[head](self.trunk(x)).sum()


def failing(gradient: Any) -> Any:
    raise ZeroDivisionError("a hook of the program")


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_after_a_backward_pass_that_failed_the_model_is_refused(stage: int) -> None:
    """Else the gradients of the failed pass would come back after zero_grad()."""

    def program(comm: Any) -> None:
        network, x = Heads(), torch.ones(2, 3)
        model = DataParallel(network, comm) if stage == 0 else Sharded(network, comm, stage=stage)
        loss = model(x, 0)
        handle = network.trunk.bias.register_hook(failing)
        with pytest.raises(ZeroDivisionError):
            loss.backward()
        handle.remove()
        network.zero_grad()
        for call in (lambda: model(x, 1), model.sync):
            with pytest.raises(RuntimeError, match="the last backward pass of this rank ended with an error"):
                call()
        comm.barrier()
        model.__exit__(RuntimeError, RuntimeError("given up"), None)

    on_ranks(program, 2)


def test_a_gradient_array_that_a_program_keeps_across_a_new_cut_cannot_be_written() -> None:
    def program(comm: Any) -> None:
        arrays = {name: np.zeros(3) for name in ("a", "b", "c")}
        with DataParallel(arrays, comm) as model:
            kept = model.gradients["a"]
            for round in range(5):
                for name in ("b", "a", "c"):  # not the order of registration
                    model.gradients[name][:] = round
                    model.ready(name)
                model.sync()
            assert model.gradients["a"] is not kept and model.gradients["a"][0] == 4
            with pytest.raises(ValueError, match="read-only"):
                kept[:] = 1
            with pytest.raises(TypeError):
                model.gradients["a"] = kept  # type: ignore[index]

    on_ranks(program, 2)


def test_a_gradient_that_no_rank_writes_is_zero_in_every_round() -> None:
    def program(comm: Any) -> list[float]:
        seen = []
        with DataParallel({"a": np.zeros(2), "b": np.zeros(2)}, comm, op="sum") as model:
            for round in range(6):
                for name in ("a", "b")[: 1 + (round == 0)]:
                    model.gradients[name][:] = 1
                    model.ready(name)
                model.sync()
                seen.append(float(model.gradients["b"][0]))
        return seen

    assert on_ranks(program, 2) == [[2, 0, 0, 0, 0, 0]] * 2


@pytest.mark.parametrize("overlap", [True, False])
def test_a_wrong_name_is_refused_at_once(overlap: bool) -> None:
    def program(comm: Any) -> None:
        message = "the name of a parameter, found 'wight'; did you mean 'weight'"
        with DataParallel({"weight": np.zeros(2)}, comm, overlap=overlap) as model:
            with pytest.raises(ValueError, match=message):
                model.ready("wight")
            model.ready("weight")
            model.sync()

    on_ranks(program, 1)


def test_ranks_that_join_end_with_the_weights_of_the_one_that_went_on() -> None:
    def program(comm: Any) -> list[float]:
        network = nn.Linear(2, 1)
        with DataParallel(network, comm) as model:
            optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
            for _ in range((2, 5, 3)[comm.rank]):
                optimizer.zero_grad()
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()
            mine = network.weight.detach().clone()
            model.join()
            assert (comm.rank == 1) == bool(torch.equal(mine, network.weight))
        return network.weight.detach().tolist()[0]

    weights = on_ranks(program, 3)
    assert weights[0] == weights[1] == weights[2]


def test_settings_that_differ_between_ranks_are_refused_with_the_ranks_of_the_job() -> None:
    def program(comm: Any) -> None:
        group = comm.subgroup([1, 2])
        if group is None:
            return
        with pytest.raises(CollectiveMismatch, match="order rank on rank 1, order fast on rank 2") as caught:
            DataParallel({"a": np.zeros(1)}, group, order="rank" if group.rank == 0 else "fast")
        assert set(caught.value.values) == {1, 2}
        with pytest.raises(CollectiveMismatch, match="'b' is registered on rank 2 and not on rank 1"):
            DataParallel({"a": np.zeros(1)} | ({"b": np.zeros(1)} if group.rank else {}), group)
        with pytest.raises(CollectiveMismatch, match="values as float16 on rank 1"):
            DataParallel({"a": np.zeros(1)}, group, **({"carrier": half("float16")} if group.rank == 0 else {}))

    on_ranks(program, 3)


def test_a_tensor_that_another_thread_registers_meanwhile_is_not_lost() -> None:
    def program(comm: Any) -> None:
        with Coordinator(comm) as engine:
            engine.register("a", np.ones(1))
            entered, go_on = threading.Event(), threading.Event()
            place = engine._carrier.place

            def slow(*arguments: Any) -> None:
                entered.set()
                assert go_on.wait(60)
                place(*arguments)

            engine._carrier.place = slow  # type: ignore[method-assign]
            thread = threading.Thread(target=engine.prepare)
            thread.start()
            assert entered.wait(60)
            late = threading.Thread(target=engine.register, args=("b", np.ones(1)))
            late.start()
            go_on.set()
            thread.join()
            late.join()
            engine._carrier.place = place  # type: ignore[method-assign]
            engine.submit("b")
            engine.flush().wait()
            assert engine.present("b") == comm.size

    on_ranks(program, 1)


def test_values_that_wait_for_the_next_round_are_not_lost_at_close() -> None:
    def program(comm: Any) -> None:
        engine = Coordinator(comm)
        engine.register("a", np.ones(1))
        engine.submit("a")
        engine.submit("a")
        engine.flush().wait()
        with pytest.raises(RuntimeError, match="closed before a were done"):
            engine.close()

    on_ranks(program, 1)


def test_a_step_inside_gathered_is_refused() -> None:
    def program(comm: Any) -> None:
        with Sharded(nn.Linear(2, 2), comm, stage=3) as model:
            optimizer = torch.optim.SGD(model.shards(), lr=1.0)
            model(torch.ones(1, 2)).sum().backward()
            with model.gathered(), pytest.raises(RuntimeError, match=r"a step outside gathered\(\)"):
                optimizer.step()
            optimizer.step()

    on_ranks(program, 2)


def test_a_worker_that_leaves_without_close_ends_the_others() -> None:
    def program(comm: Any) -> str:
        server, weights = ParameterServer(comm, [0]), np.zeros(3)
        server.begin(weights)
        if comm.rank == 1:
            return "left"
        with pytest.raises(PeerAborted) as caught:
            if comm.rank == 0:
                server.serve(Momentum(0.1))
            else:
                server.push(np.ones(3))
        assert caught.value.rank == 1
        return "told"

    assert on_ranks(program, 3) == ["told", "left", "told"]


def test_the_norm_of_small_types_does_not_overflow() -> None:
    def program(comm: Any) -> None:
        with DataParallel({"a": np.zeros(4, np.float16)}, comm) as model:
            model.gradients["a"][:] = 200
            model.ready("a")
            model.sync()
            assert model.clip(1.0) == pytest.approx(400)
            assert model.gradients["a"][0] == pytest.approx(0.5, rel=1e-3)

    on_ranks(program, 2)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_step_before_a_backward_pass_through_the_old_weights_is_noticed(stage: int) -> None:
    def program(comm: Any) -> None:
        with Sharded(nn.Linear(2, 2), comm, stage=stage) as model:
            optimizer = torch.optim.SGD(model.shards(), lr=1.0)
            x = torch.ones(1, 2, requires_grad=True)
            first, second = (model(x).square().sum() for _ in range(2))
            first.backward()
            optimizer.step()
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                second.backward()
            comm.barrier()
            model.__exit__(RuntimeError, RuntimeError("given up"), None)

    on_ranks(program, 2)


class Detached(nn.Module):
    """Its input's gradient reads the weight after the weight's own gradient is there."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0]))

    def forward(self, x: Any) -> Any:
        return x * self.weight.detach() + self.weight.sum()


def test_weights_stay_until_the_gradient_of_the_input_is_computed() -> None:
    def program(comm: Any) -> None:
        with Sharded(nn.Sequential(Detached(), Detached()), comm, stage=3) as model:
            for _ in range(3):
                x = torch.ones(2, requires_grad=True)
                model(x).sum().backward()
                assert x.grad is not None and x.grad.tolist() == [1.0, 4.0]

    on_ranks(program, 2)


def test_a_rank_that_is_interrupted_tells_the_others() -> None:
    """Its own later calls raise no KeyboardInterrupt again."""

    def program(comm: Any) -> str:
        engine = Coordinator(comm)
        engine.register("a", np.ones(1))
        engine.prepare()
        comm.barrier()
        if comm.rank == 0:
            engine._rounds.fail(KeyboardInterrupt())
            with pytest.raises(CommunicationError, match="interrupted by KeyboardInterrupt"):
                engine.submit("a")
            with pytest.raises(PeerAborted, match="this rank itself gave up"):
                engine.close()
            return "interrupted"
        with pytest.raises(PeerAborted) as caught:
            engine.submit("a")
            engine.flush().wait()
        assert caught.value.rank == 0
        engine.close()
        return "told"

    assert on_ranks(program, 2) == ["interrupted", "told"]
