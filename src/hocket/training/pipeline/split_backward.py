"""The backward of one stage in two halves: B, the gradient of its input, and W, the gradients of its weights.

Autograd's graph leads from the output to the input. At some of its nodes, such as a multiplication by a weight, it also
leads aside, to weights. B runs the way to the input, and keeps the gradients that arrive at those nodes. W begins at
those nodes with what B kept, and runs what lies aside. So no multiplication is done twice, with two exceptions: where
several nodes use the same weight, W also runs the way from one of them to the next; and nodes that compute all of their
gradients at once, such as those of torch.compile and of a program's own autograd Functions, run in B and in W.

Hooks on tensors and nodes inside a stage may run in both halves; what they return counts once. Autograd looks at the
whole graph below the node where it begins, so the time that W takes besides computing grows with the square of the
depth: 4 s for a stage of 1600 layers.
"""

from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

_LEAF = type(get_gradient_edge(torch.zeros((), requires_grad=True)).node)  # of a tensor that no operation has made


class SplitBackward:
    """x, y: input and output of one forward. x is a leaf, or None for a stage that is given no results."""

    def __init__(self, x: Any, y: Any) -> None:
        self._x, self._y = x, y
        self._forks: list[_Forks] = []

    def input_gradient(self, above: Any) -> Any:
        """Returns the gradient of x; None if y does not depend on x. above: the gradient of y, None if that is 1."""
        x, y, self._x, self._y = self._x, self._y, None, None  # the graph is kept from the forks on
        if not y.requires_grad:
            return None
        root = get_gradient_edge(y)
        leads, self._forks = (False, []) if x is None else _find_forks(root.node, get_gradient_edge(x).node)
        if not leads:
            arrived = (None,) * root.output_nr + (torch.ones_like(y) if above is None else above,)
            self._forks = [_Forks({root.node: arrived}, set(), has_run=False)]
            return None
        handles = [node.register_prehook(forks.keeper(node)) for forks in self._forks for node in forks.arrived]
        [below] = torch.autograd.grad(y, x, above, retain_graph=True, allow_unused=True)
        for handle in handles:
            handle.remove()
        return below

    def add_weight_gradients(self) -> None:
        """Adds the gradients of the weights to their .grad, once `input_gradient` has been called."""
        forks, self._forks = self._forks, []
        for one in forks:
            one.run()


class _Forks:
    """Nodes from which the same weights are reached. weights: the nodes of these; empty: all that are reached.

    arrived: by node, the gradients of its outputs; None for those that no gradient reached. has_run: whether B has run
    these nodes, and with them their hooks, which may have changed the gradients.
    """

    def __init__(self, arrived: dict[Any, tuple[Any, ...]], weights: set[Any], has_run: bool = True) -> None:
        self.arrived, self.weights, self.has_run = arrived, weights, has_run

    def keeper(self, node: Any) -> Any:
        def keep(gradients: tuple[Any, ...]) -> None:
            self.arrived[node] = gradients

        return keep

    def run(self) -> None:
        edges, gradients, handles = [], [], []
        for node, arrived in self.arrived.items():
            for number, gradient in enumerate(arrived):
                if gradient is not None:
                    edges.append(GradientEdge(node, number))
                    gradients.append(gradient)
            if self.has_run:  # what hooks do, and what comes from another of the nodes, is in `arrived` already
                handles.append(node.register_prehook(lambda _, arrived=arrived: arrived))
        if edges:
            weights = [node.variable for node in self.weights] or None
            # The graph is kept: the way from one fork to another may lead over those of other weights.
            torch.autograd.backward(edges, gradients, retain_graph=True, inputs=weights)
        for handle in handles:
            handle.remove()


def _find_forks(root: Any, end: Any) -> tuple[bool, list[_Forks]]:
    """Returns whether the root leads to the end, and the nodes on the way from which weights are reached aside."""
    leads: dict[Any, bool] = {}
    aside: dict[Any, set[Any]] = {}  # by node: the weights that it reaches, but not on the way to the end
    for node in _successors_first(root):
        successors = [successor for successor, _ in node.next_functions if successor is not None]
        leads[node] = node is end or any(leads[successor] for successor in successors)
        aside[node] = {node} if isinstance(node, _LEAF) and node is not end else set()
        aside[node].update(*(aside[successor] for successor in successors if not leads[successor]))
    forks_of: dict[Any, _Forks] = {}  # by weight
    for node, weights in aside.items():
        if leads[node] and weights:
            same = {forks_of[weight] for weight in weights if weight in forks_of}
            nodes = [node, *(other for one in same for other in one.arrived)]
            forks = _Forks(dict.fromkeys(nodes, ()), weights.union(*(one.weights for one in same)))
            forks_of |= dict.fromkeys(forks.weights, forks)
    return leads[root], list(dict.fromkeys(forks_of.values()))


def _successors_first(root: Any) -> list[Any]:
    """The nodes of a graph, each behind those that it leads to."""
    order, seen = [], {root}
    path = [(root, iter(root.next_functions))]
    while path:
        node, successors = path[-1]
        for successor, _ in successors:
            if successor is not None and successor not in seen:
                seen.add(successor)
                path.append((successor, iter(successor.next_functions)))
                break
        else:
            order.append(node)
            path.pop()
    return order
