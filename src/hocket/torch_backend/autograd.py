"""Differentiable collectives: each returns a new tensor, and its gradient is computed by the transposed collective.

    all_reduce <-> all_reduce        all_gather <-> reduce_scatter        broadcast <-> reduce
    all_to_all <-> all_to_all        scatter <-> gather                   send <-> recv

All ranks call a collective, and all must run its backward pass, in the opposite order. So a rank without a result gets
an empty tensor with a gradient; its loss must depend on this tensor. Gradients are differentiable, too. The functions
work on every backend that has the collective. Tensors are concatenated and split along dim 0. Ranks are those of the
group.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["all_gather", "all_reduce", "all_to_all", "broadcast", "gather", "recv", "reduce", "reduce_scatter"]
__all__ += ["scatter", "send"]


def all_reduce(x: Any, op: Any = dist.ReduceOp.SUM, group: Any = None) -> Any:
    """Returns the sum, or with AVG the mean, of the x of all ranks."""
    return _AllReduce.apply(x, _linear("all_reduce", op), group)


def reduce(x: Any, root: int, group: Any = None) -> Any:
    """Returns the sum of the x of all ranks at the root; an empty tensor elsewhere."""
    return _Reduce.apply(x, root, group)


def broadcast(x: Any, root: int, group: Any = None) -> Any:
    """Returns the root's x; elsewhere x only gives the shape."""
    return _Broadcast.apply(x, root, group)


def all_gather(x: Any, group: Any = None) -> Any:
    """Returns the x of all ranks, concatenated; all have the same length."""
    return _AllGather.apply(x, group)


def reduce_scatter(x: Any, op: Any = dist.ReduceOp.SUM, group: Any = None) -> Any:
    """Returns this rank's part of the sum, or with AVG the mean, of the x of all ranks."""
    return _ReduceScatter.apply(x, _linear("reduce_scatter", op), group)


def all_to_all(
    x: Any,
    output_splits: Sequence[int] | None = None,
    input_splits: Sequence[int] | None = None,
    group: Any = None,
) -> Any:
    """Sends rows of x to each rank and returns rows from each; without splits, all parts have the same length."""
    return _AllToAll.apply(x, output_splits, input_splits, group)


def gather(x: Any, root: int, group: Any = None) -> Any:
    """Returns the x of all ranks, concatenated, at the root; an empty tensor elsewhere. All x have the same length."""
    return _Gather.apply(x, root, group)


def scatter(x: Any, root: int, group: Any = None) -> Any:
    """Returns this rank's part of the root's x; elsewhere x only gives the shape."""
    return _Scatter.apply(x, root, group)


def send(x: Any, dst: int, group: Any = None, tag: int = 0) -> Any:
    """Sends x and returns an empty tensor; the backward pass receives the gradient of x."""
    return _Send.apply(x, dst, group, tag)


def recv(x: Any, src: int, group: Any = None, tag: int = 0) -> Any:
    """Returns what a rank has sent; its gradient goes back to that rank. x only gives the shape.

    x must require a gradient. For torch.autograd.grad, x must depend on one of the inputs, for example 0 * input.
    """
    return _Recv.apply(x, src, group, tag)


def _linear(name: str, op: Any) -> Any:
    if op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
        raise ValueError(f"{name}: expected ReduceOp.SUM or AVG, which are linear; found {op}")
    return op


def _rows(x: Any, group: Any) -> Any:
    """Returns an empty tensor for this rank's part of x. Raises ValueError if x has no equal parts."""
    size = dist.get_world_size(group)
    if x.dim() == 0 or x.size(0) % size:
        raise ValueError(f"expected x with a dim 0 that {size} ranks can split evenly, found shape {tuple(x.shape)}")
    return x.new_empty((x.size(0) // size, *x.shape[1:]))


def _placeholder(empty: Any, shape: Sequence[int]) -> Any:
    """Returns zeros for a rank without values; the backward pass still reaches the empty tensor through them."""
    return empty.new_zeros(shape) + empty.sum()


class _AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Any, op: Any, group: Any) -> Any:
        context.op, context.group = op, group
        y = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(y, op, group)
        return y

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        return _AllReduce.apply(gradient, context.op, context.group), None, None


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Any, root: int, group: Any) -> Any:
        context.root, context.group, context.shape = root, group, x.shape
        y = x.clone(memory_format=torch.contiguous_format)
        dist.reduce(y, group=group, group_dst=root)
        return y if dist.get_rank(group) == root else x.new_empty(0)

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        if dist.get_rank(context.group) != context.root:
            gradient = _placeholder(gradient, context.shape)
        return _Broadcast.apply(gradient, context.root, context.group), None, None


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Any, root: int, group: Any) -> Any:
        context.root, context.group = root, group
        y = x.clone(memory_format=torch.contiguous_format)
        dist.broadcast(y, group=group, group_src=root)
        return y

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        found = _Reduce.apply(gradient, context.root, context.group)
        if dist.get_rank(context.group) != context.root:
            found = _placeholder(found, gradient.shape)
        return found, None, None


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Any, group: Any) -> Any:
        context.group = group
        y = x.new_empty((x.size(0) * dist.get_world_size(group), *x.shape[1:]))
        dist.all_gather_single(y, x.contiguous(), group)
        return y

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        return _ReduceScatter.apply(gradient, dist.ReduceOp.SUM, context.group), None


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Any, op: Any, group: Any) -> Any:
        context.op, context.group = op, group
        y = _rows(x, group)
        dist.reduce_scatter_single(y, x.contiguous(), op, group)
        return y

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        if context.op == dist.ReduceOp.AVG:
            gradient = gradient / dist.get_world_size(context.group)
        return _AllGather.apply(gradient, context.group), None, None


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Any, output_splits: Any, input_splits: Any, group: Any) -> Any:
        context.splits, context.group = (output_splits, input_splits), group
        rows = x.size(0) if output_splits is None else sum(output_splits)
        y = x.new_empty((rows, *x.shape[1:]))
        dist.all_to_all_single(y, x.contiguous(), output_splits, input_splits, group)
        return y

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        output_splits, input_splits = context.splits
        return _AllToAll.apply(gradient, input_splits, output_splits, context.group), None, None, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Any, root: int, group: Any) -> Any:
        context.root, context.group, context.shape = root, group, x.shape
        if dist.get_rank(group) != root:
            dist.gather(x.contiguous(), group=group, group_dst=root)
            return x.new_empty(0)
        size = dist.get_world_size(group)
        y = x.new_empty((x.size(0) * size, *x.shape[1:]))
        dist.gather(x.contiguous(), list(y.chunk(size)) if x.size(0) else [y] * size, group=group, group_dst=root)
        return y

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        if dist.get_rank(context.group) != context.root:
            rows, *rest = context.shape
            gradient = _placeholder(gradient, (rows * dist.get_world_size(context.group), *rest))
        return _Scatter.apply(gradient, context.root, context.group), None, None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Any, root: int, group: Any) -> Any:
        context.root, context.group, context.shape = root, group, x.shape
        y, parts = _rows(x, group), None
        if dist.get_rank(group) == root:
            size = dist.get_world_size(group)
            parts = list(x.contiguous().chunk(size)) if y.size(0) else [x] * size
        dist.scatter(y, parts, group=group, group_src=root)
        return y

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        found = _Gather.apply(gradient, context.root, context.group)
        if dist.get_rank(context.group) != context.root:
            found = _placeholder(found, context.shape)
        return found, None, None


class _Send(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Any, dst: int, group: Any, tag: int) -> Any:
        context.dst, context.group, context.tag, context.shape = dst, group, tag, x.shape
        dist.send(x.contiguous(), group=group, tag=tag, group_dst=dst)
        return x.new_empty(0)

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        room = _placeholder(gradient, context.shape)
        return _Recv.apply(room, context.dst, context.group, context.tag), None, None, None


class _Recv(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Any, src: int, group: Any, tag: int) -> Any:
        context.src, context.group, context.tag = src, group, tag
        y = torch.empty_like(x, memory_format=torch.contiguous_format)
        dist.recv(y, group=group, tag=tag, group_src=src)
        return y

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        sent = _Send.apply(gradient, context.src, context.group, context.tag)
        return _placeholder(sent, gradient.shape), None, None, None
