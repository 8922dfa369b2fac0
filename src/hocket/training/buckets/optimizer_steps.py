"""What a step of a PyTorch optimizer means to shards: hooks on all optimizers, so that no program can forget them."""

import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook


class ShardOwner(Protocol):
    """What is told of the steps of its shards."""

    def check_step(self) -> None:
        """Is called before each step of an optimizer that has one of the shards; raises to refuse it."""

    def stepped(self, optimizer: Any) -> None:
        """Is called after each step of an optimizer that has one of the shards."""


_OWNERS: weakref.WeakValueDictionary[int, ShardOwner] = weakref.WeakValueDictionary()  # by id of a shard
_SPREAD: weakref.WeakValueDictionary[int, ShardOwner] = weakref.WeakValueDictionary()  # by id of a module's parameter


def watch(owner: ShardOwner, shards: Iterable[Any], spread: Iterable[Any]) -> None:
    """Tells `owner` of steps of its shards; a step of the parameters that are spread over the shards is refused."""
    _OWNERS.update({id(shard): owner for shard in shards})
    _SPREAD.update({id(parameter): owner for parameter in spread})


def unwatch(spread: Iterable[Any]) -> None:
    """Refuses steps of these parameters no longer."""
    for parameter in spread:
        _SPREAD.pop(id(parameter), None)


def _parameters_of(optimizer: Any) -> Iterator[Any]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _before_step(optimizer: Any, *arguments: Any) -> None:
    if any(id(parameter) in _SPREAD for parameter in _parameters_of(optimizer)):
        raise RuntimeError(
            f"sharded: expected an optimizer of model.shards(), found {type(optimizer).__name__} with parameters of "
            "the module, which have no gradients; build it from model.shards()"
        )

    for owner in _owners_of(optimizer):
        owner.check_step()


def _after_step(optimizer: Any, *arguments: Any) -> None:
    for owner in _owners_of(optimizer):
        owner.stepped(optimizer)


def _owners_of(optimizer: Any) -> list[ShardOwner]:
    found = (_OWNERS.get(id(parameter)) for parameter in _parameters_of(optimizer))
    return list({id(owner): owner for owner in found if owner is not None}.values())


# Once and for good: PyTorch's table of hooks must not change while another thread makes a step.
register_optimizer_step_pre_hook(_before_step)
register_optimizer_step_post_hook(_after_step)
