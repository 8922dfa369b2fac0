"""Ranks in a Ray cluster, two on each of two hosts: python examples/engines/on_ray.py"""

import numpy as np
import ray

import hocket
import hocket.ray


def main() -> str:
    with hocket.init() as comm:
        x = comm.all_reduce(np.full(3, comm.rank + 1.0))
        return f"rank {comm.rank} of {comm.size}: sum {x.tolist()}"


if __name__ == "__main__":
    ray.init()  # as always: RAY_ADDRESS names the cluster
    for line in hocket.ray.run(main, 4, ranks_per_host=2):
        print(line)
