"""Weights that several ranks have: tied ones, and those of stages that a table places on two ranks (DualPipe).

All ranks begin with those of the lowest rank that has them. After a step their gradients are added up, in the order of
ranks, so that every rank has the same bits.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from hocket.runtime import Communicator, Recv, Send
from hocket.training.pipeline.pipeline_messages import first_free_tag
from hocket.training.pipeline.table import PipelineTable

Facts = Mapping[str, tuple[tuple[int, ...], str, bool]]
"""Shape, type, and whether it is trained, by the name of a weight that a rank shares."""


def find_shared(table: PipelineTable, rank: int, stages: Mapping[int, Any], tied: Mapping[str, Any]) -> dict[str, Any]:
    """The weights of a rank that others have, too, by a name that is the same on all of them. Each appears once."""
    shared = {f"tied {name}": weight for name, weight in tied.items()}
    known = {id(weight) for weight in shared.values()}
    for stage in sorted(stages):
        if len(np.unique(table.placement[:, stage])) == 1:
            continue
        for name, weight in stages[stage].named_parameters():
            if id(weight) not in known:
                known.add(id(weight))
                shared[f"stage {stage}, {name}"] = weight
    return shared


def facts_of(shared: Mapping[str, Any]) -> Facts:
    """What the ranks must agree on."""
    return {name: (tuple(one.shape), str(one.dtype), one.requires_grad) for name, one in shared.items()}


def check_facts(table: PipelineTable, ranks: Sequence[Facts]) -> None:
    """ValueError if a weight is on one rank alone, or differs between those that have it. ranks: of all, in order."""
    for name in sorted({name for facts in ranks for name in facts}):
        here = [rank for rank, facts in enumerate(ranks) if name in facts]
        first = here[0]
        if len(here) == 1:
            hint = "give it on each rank that has it; stages of one rank share the parameter itself"
            if not name.startswith("tied "):
                hint = "build the same module for a stage on both of its ranks"
            raise ValueError(f"{table.name}: expected {name!r} on two ranks, found it on rank {first} alone; {hint}")
        for rank in here[1:]:
            if ranks[rank][name] != ranks[first][name]:
                raise ValueError(
                    f"{table.name}: expected {name!r} to have the same shape, type and requires_grad on all ranks, "
                    f"found {ranks[first][name]} on rank {first} and {ranks[rank][name]} on rank {rank}"
                )


class SharedWeights:
    """The weights of this rank that others have, too. All ranks construct it: it takes the lowest rank's weights."""

    def __init__(
        self, table: PipelineTable, comm: Communicator, shared: Mapping[str, Any], ranks: Sequence[Facts]
    ) -> None:
        self._comm, self._weights = comm, shared
        names = sorted({name for facts in ranks for name in facts})
        self._tags = {name: first_free_tag(table) + number for number, name in enumerate(names)}
        self._holders = {name: [rank for rank, facts in enumerate(ranks) if name in facts] for name in shared}
        self._before: dict[str, Any] = {}
        self._take()

    def _take(self) -> None:
        messages: list[Send | Recv] = []
        arriving = []
        for name, weight in self._weights.items():
            first, *others = self._holders[name]
            data = weight.detach().contiguous()
            if first == self._comm.rank:
                messages += [Send(data, rank, self._tags[name]) for rank in others]
            else:
                data = torch.empty_like(data)
                messages.append(Recv(data, first, self._tags[name]))
                arriving.append((weight, data))
        self._comm.batch(messages)
        with torch.no_grad():
            for weight, data in arriving:
                weight.copy_(data)

    def begin(self) -> None:
        """Puts the gradients of earlier steps, which are added up already, aside."""
        for name, weight in self._weights.items():
            self._before[name], weight.grad = weight.grad, None

    def add_up(self) -> None:
        """Adds the gradients of all ranks, and those put aside. Where no rank has a gradient, there is none."""
        messages: list[Send | Recv] = []
        parts: dict[str, list[Any]] = {}  # of each rank in order, flat, and behind it 1 for a gradient and 0 for none
        for name, weight in self._weights.items():
            if not weight.requires_grad:
                continue
            mine = weight.new_zeros(weight.numel() + 1, requires_grad=False)
            if weight.grad is not None:
                mine[:-1], mine[-1] = weight.grad.to_dense().reshape(-1), 1
            parts[name] = []
            for rank in self._holders[name]:
                if rank == self._comm.rank:
                    parts[name].append(mine)
                else:
                    parts[name].append(torch.empty_like(mine))
                    messages += [Send(mine, rank, self._tags[name]), Recv(parts[name][-1], rank, self._tags[name])]
        self._comm.batch(messages)
        for name, found in parts.items():
            weight, before = self._weights[name], self._before[name]
            total = found[0]
            for part in found[1:]:
                total = total + part
            added = total[:-1].reshape(weight.shape) if total[-1] else None
            weight.grad = added if before is None else before if added is None else before.add_(added)
