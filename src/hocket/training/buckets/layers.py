"""The layers of a PyTorch module: what makes a unit, and the hooks that make its weights whole before each use."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from hocket.errors import CollectiveMismatch
from hocket.runtime import Communicator
from hocket.training.buckets.gathers import Gathers
from hocket.training.buckets.hooks import BackwardPasses
from hocket.training.buckets.units import Unit
from hocket.training.coordinator.names import Tensor, numbers_of


def agreed(module: Any, parameters: Mapping[str, Any], comm: Communicator, settings: str, op: str) -> dict[str, Any]:
    """Returns the trainable parameters in rank 0's order. Raises CollectiveMismatch on all ranks if models differ."""
    others = [(name, one, "frozen") for name, one in module.named_parameters() if name not in parameters]
    others += [(name, one, "buffer") for name, one in module.named_buffers()]
    tensors = [
        Tensor(name, tuple(one.shape), str(one.dtype), kind)
        for name, one, kind in [*((name, one, op) for name, one in parameters.items()), *others]
    ]
    try:
        numbers = numbers_of(comm, tensors, settings)
    except CollectiveMismatch:
        comm.close()  # which waits until all ranks know the difference
        raise
    return dict(item for _, item in sorted(zip(numbers, parameters.items(), strict=False)))


def units_of(module: Any, parameters: Mapping[str, Any], comm: Communicator, stage: int, num_bytes: int) -> list[Unit]:
    """Returns the units, equal on all ranks.

    parameters: the trainable ones, the last ones first, in an order that all ranks share. In stages 1 and 2 a unit has
    consecutive ones with at least `num_bytes`; in stage 3 it has a layer, and the first layer comes first.
    """
    groups: dict[Any, dict[str, Any]] = {}
    if stage == 3:
        owners = {id(parameter): name for name, _, found in reversed(list(layers_of(module))) for parameter in found}
        for name, parameter in reversed(list(parameters.items())):
            groups.setdefault((owners[id(parameter)], parameter.dtype), {})[name] = parameter
    else:
        held: Counter[Any] = Counter()  # bytes so far, by type
        for name, parameter in parameters.items():
            groups.setdefault((held[parameter.dtype] // num_bytes, parameter.dtype), {})[name] = parameter
            held[parameter.dtype] += parameter.nbytes
    return [Unit(next(iter(group)), group, comm.rank, comm.size, stage) for group in groups.values()]


def layers_of(module: Any) -> Iterator[tuple[str, Any, list[Any]]]:
    """Yields the smallest modules that have trainable parameters of their own: name, module, parameters.

    nn.MultiheadAttention counts as one with the modules in it, because it reads their weights and does not call them.
    """
    whole: list[str] = []
    for name, layer in module.named_modules():
        if any(name.startswith(above) for above in whole):
            continue
        reads_inner = isinstance(layer, torch.nn.MultiheadAttention)
        if reads_inner:
            whole.append(f"{name}." if name else "")
        parameters = [one for one in layer.parameters(recurse=reads_inner) if one.requires_grad]
        if parameters:
            yield name, layer, parameters


class LayerHooks:
    """Gathers each layer's units before its forward and before its backward computation, and releases them after."""

    def __init__(self, module: Any, units: Sequence[Unit], comm: Communicator, passes: BackwardPasses) -> None:
        self.gathers = Gathers(units, comm)
        self._units, self._passes = units, passes
        self._num_arrived: Counter[int] = Counter()  # gradients of each unit in this backward pass
        self._complete: list[int] = []  # units of which all have arrived, and that are still whole
        numbers = {id(parameter): number for number, unit in enumerate(units) for parameter in unit.parameters}
        self.handles = []
        for name, layer, parameters in layers_of(module):
            used = list(dict.fromkeys(numbers[id(parameter)] for parameter in parameters))
            self.handles += self._hooked(name, layer, used)
        self.handles.append(module.register_forward_hook(self._end))
        self.handles.append(module.register_forward_pre_hook(self._begin, prepend=True))

    def enter_backward(self) -> None:
        """Is called in a backward pass, by a hook of autograd."""
        if self._passes.enter():
            self._begin_backward()

    def arrived(self, number: int) -> None:
        """Says that the gradient of one more parameter of the unit is complete."""
        self._num_arrived[number] += 1
        if self._num_arrived[number] == len(self._units[number].parameters):
            self._complete.append(number)

    def _free_complete(self) -> None:
        """Frees units when the backward pass has come to another layer.

        Before, a layer may still read its weights for the gradient of its input. Autograd does last calls first.
        """
        while self._complete:
            self.gathers.release(self._complete.pop())

    def end_backward(self) -> None:
        """Ends a backward pass, also one that has not used a layer."""
        if self.gathers.direction != "backward":
            self._begin_backward()
        self.gathers.end()

    def _begin_backward(self) -> None:
        self._num_arrived.clear()
        self._complete.clear()
        self.gathers.begin("backward")

    def _begin(self, module: Any, inputs: Any) -> None:
        if not _in_backward():  # else it is computed once more, for the backward pass
            self.gathers.begin("forward")

    def _end(self, module: Any, inputs: Any, output: Any) -> None:
        if not _in_backward():
            self.gathers.end()

    def _hooked(self, name: str, layer: Any, used: Sequence[int]) -> list[Any]:
        def enter(layer: Any, inputs: Any) -> None:
            if _in_backward():
                self.enter_backward()
                self._free_complete()
            for number in used:
                self.gathers.need(number)

        def leave(layer: Any, inputs: Any, output: Any) -> None:
            outputs = list(_tensors_of(output, name))
            if outputs:
                torch.autograd.graph.register_multi_grad_hook(outputs, reach, mode="any")
            if not _in_backward():
                for number in used:
                    self.gathers.release(number)

        def reach(gradient: Any) -> None:
            self.enter_backward()
            self._free_complete()
            for number in used:
                self.gathers.need(number)

        return [layer.register_forward_pre_hook(enter, prepend=True), layer.register_forward_hook(leave)]


def _in_backward() -> bool:
    return bool(torch._C._current_graph_task_id() != -1)


def _tensors_of(output: Any, name: str) -> Iterator[Any]:
    """Yields the tensors in what a layer returns from which a backward pass can come. Raises TypeError for others."""
    if isinstance(output, torch.Tensor):
        if output.requires_grad:
            yield output
    elif isinstance(output, tuple | list | Mapping):
        for one in output.values() if isinstance(output, Mapping) else output:
            yield from _tensors_of(one, name)
    elif not (output is None or isinstance(output, bool | int | float | str)):
        raise TypeError(
            f"sharded, stage 3: expected that {name} returns tensors, or tuples, lists or dicts of them, found a "
            f"{type(output).__name__}"
        )
