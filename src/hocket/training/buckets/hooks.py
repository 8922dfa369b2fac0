"""Gradients of a PyTorch module: they lie in buckets, and autograd says when each of them is ready."""

from collections.abc import Callable, Collection
from typing import Any

import torch


class BackwardPasses:
    """Tells backward passes apart; calls done() at the end of each in which `enter` was called.

    check: raises what may have ended a pass, if it was the communication.
    """

    def __init__(self, done: Callable[[], None], check: Callable[[], None]) -> None:
        self._done, self._check = done, check
        self._pass = -1
        self._num_open = 0  # passes that have begun and not ended; above 1 only inside each other

    def enter(self) -> bool:
        """Is called in a backward pass, by a hook of autograd; returns whether it is the first time in this pass."""
        this_pass = torch._C._current_graph_task_id()
        if this_pass == self._pass:
            return False
        self._pass = this_pass
        self._num_open += 1
        torch.autograd.Variable._execution_engine.queue_callback(self._end)
        return True

    def check_ended(self) -> None:
        """Raises RuntimeError outside of backward passes if the last one has not ended."""
        if self._num_open and torch._C._current_graph_task_id() == -1:
            self._check()
            raise RuntimeError(
                "the last backward pass of this rank ended with an error, and some of its gradients may be on their "
                "way to other ranks; close the model, and make another one"
            )

    def _end(self) -> None:
        self._num_open -= 1
        self._done()


class BackwardHooks:
    """Puts the gradients of a module's trainable parameters into given memory, and calls back.

    ready(name) is called when the gradient of a parameter has been accumulated in a backward pass. A parameter that the
    module uses twice (a tied one) counts once. adds_up: whether a result may be added to by a later pass; a sum over
    ranks may not, because each rank would add it.
    """

    def __init__(self, module: Any, ready: Callable[[str], None], passes: BackwardPasses, adds_up: bool) -> None:
        self.parameters = trainable(module)
        self._views: dict[str, Any] = {}
        self._ready, self.passes = ready, passes
        self._versions: dict[str, int] | None = None if adds_up else {}  # of the results of the last round
        self._handles = [
            one.register_post_accumulate_grad_hook(self._hook(name)) for name, one in self.parameters.items()
        ]

    def move(self, name: str, view: Any) -> None:
        """Makes `view` the place of a gradient. The present gradient, if there is one, has been copied into it."""
        parameter = self.parameters[name]
        if parameter.grad is not None:
            parameter.grad = view
        self._views[name] = view

    def has_gradient(self, name: str) -> bool:
        """Returns whether the parameter has a gradient: zero_grad() may have taken it away since it was written."""
        return self.parameters[name].grad is not None

    def kept(self, written: Collection[str]) -> dict[str, Any]:
        """Returns copies of the gradients of earlier rounds that this one has not written, but might overwrite."""
        untouched = self.parameters.keys() - set(written)
        return {name: self._views[name].clone() for name in untouched if self.parameters[name].grad is not None}

    def adopt(self, absent: Collection[str], kept: dict[str, Any]) -> None:
        """After a round: the results are the gradients. Those that no rank had are as they were before it."""
        for name in absent:
            if name in kept:
                self._views[name].copy_(kept[name])
        for name, parameter in self.parameters.items():
            if parameter.grad is None and name not in absent:
                parameter.grad = self._views[name]
        if self._versions is not None:
            self._versions = {name: view._version for name, view in self._views.items()}

    def clip(self, max_norm: float) -> float:
        """Scales the gradients so that their norm together is at most `max_norm`; returns the norm before."""
        versions = self._versions or {}
        results = [name for name, version in versions.items() if self._views[name]._version == version]
        norm = float(torch.nn.utils.clip_grad_norm_(list(self.parameters.values()), max_norm))
        for name in results:  # scaled, they are still sums over the ranks
            versions[name] = self._views[name]._version
        return norm

    def remove(self) -> None:
        """Takes the hooks away."""
        for handle in self._handles:
            handle.remove()

    def _hook(self, name: str) -> Callable[[Any], None]:
        def accumulated(parameter: Any) -> None:
            view = self._views[name]
            if parameter.grad is not view:  # the first after zero_grad(), which takes gradients away
                view.copy_(parameter.grad)
                parameter.grad = view
            elif self._versions and view._version == self._versions.get(name, -2) + 1:
                raise RuntimeError(
                    f"the gradient of {name} is already a sum over the ranks, and this backward pass has added to it; "
                    "call zero_grad() before it, or accumulate inside no_sync()"
                )
            self.passes.enter()
            self._ready(name)

        return accumulated


def trainable(module: Any) -> dict[str, Any]:
    """Returns the parameters that need a gradient, by name, the last ones first, as a backward pass produces them.

    Raises TypeError for parameters in the memory of a GPU.
    """
    found = {name: one for name, one in reversed(list(module.named_parameters())) if one.requires_grad}
    for name, parameter in found.items():
        if parameter.device.type != "cpu":
            raise TypeError(
                f"expected parameters in the memory of the host, found {name} on {parameter.device}; for a GPU use "
                'PyTorch\'s DistributedDataParallel on the backend "hocket"'
            )
    return found
