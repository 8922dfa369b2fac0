"""The backward of one stage in two halves: B, the gradient of its input, and W, the gradients of its weights.

Autograd's graph leads from the output to the input. At some of its nodes, such as a multiplication by a weight, it also
leads aside, to weights. B runs the way to the input, and keeps the gradients that arrive at those nodes. W begins at
those nodes with what B kept, and runs what lies aside. So no multiplication is done twice, unless several nodes use the
same weight: then W also runs the way from one of them to the next.
"""

from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge


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
        end = None if x is None else get_gradient_edge(x).node
        arrived = (None,) * root.output_nr + (torch.ones_like(y) if above is None else above,)
        leads, self._forks = _find_forks(root.node, end)
        if not leads:
            self._forks = [_Forks({root.node: arrived}, set())]
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
    """Nodes that lead to the same weights. weights: the nodes of these; empty: all that are reached.

    arrived: by node, the gradients of its outputs; None for those that no gradient reached.
    """

    def __init__(self, arrived: dict[Any, tuple[Any, ...]], weights: set[Any]) -> None:
        self.arrived, self.weights = arrived, weights

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
            if len(self.arrived) > 1:  # what comes from another of the nodes is in `arrived` already
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
        aside[node] = {node} if node is not end and hasattr(node, "variable") else set()
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
