"""Computes max-min fair rates of flows that share links, by progressive filling: compiled, or with NumPy alone."""

import numpy as np
import numpy.typing as npt

from hocket.network import compiled

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
_NONE: Floats = np.zeros(0)


def max_min(capacity: Floats, offsets: Ints, links: Ints, weights: Floats = _NONE, penalties: Floats = _NONE) -> Floats:
    """Returns the rate of each flow: float64[n], in the unit of capacity; infinity for a flow that crosses no link.

    Flow f crosses links[offsets[f] : offsets[f + 1]] and uses, on each, its rate times the weight at the same index
    (without weights: 1). On a full link, a flow of penalty 2 gets half the rate of a flow of penalty 1. Raises
    ValueError for arrays of lengths that do not match.
    """
    if compiled.simulator is None:
        return filled(capacity, offsets, links, weights, penalties)
    rates = np.empty(len(offsets) - 1)
    compiled.simulator.max_min(capacity, offsets, links, weights, penalties, rates)
    return rates


def filled(capacity: Floats, offsets: Ints, links: Ints, weights: Floats = _NONE, penalties: Floats = _NONE) -> Floats:
    """Returns the same without compiled code; each round fills all links that become full at the same level."""
    num_flows, num_links = len(offsets) - 1, len(capacity)
    flow = np.repeat(np.arange(num_flows), np.diff(offsets))
    weight = weights if len(weights) else np.ones(len(links))
    growth = 1 / penalties if len(penalties) else np.ones(num_flows)
    rates = np.full(num_flows, np.inf)
    left = capacity.astype(np.float64)
    while len(flow):
        demand = np.bincount(links, weight * growth[flow], num_links)
        used = np.flatnonzero(demand > 0)
        share = np.maximum(left[used], 0) / demand[used]
        level = share.min()
        full = np.zeros(num_links, bool)
        full[used[share <= level * (1 + 1e-12)]] = True
        stopped = np.unique(flow[full[links]])
        rates[stopped] = level * growth[stopped]
        stops = np.isin(flow, stopped)
        left -= np.bincount(links[stops], (weight * rates[flow])[stops], num_links)
        flow, links, weight = flow[~stops], links[~stops], weight[~stops]
    return rates
