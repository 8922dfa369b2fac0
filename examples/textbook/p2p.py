"""Two processes pass a tensor on: with send and recv, which wait, then with isend and irecv, which do not.

    python examples/textbook/p2p.py
    python examples/textbook/p2p.py gloo

This is the classic first program of torch.distributed. Only the name of the backend refers to Hocket.
"""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def blocking(rank: int, size: int) -> None:
    tensor = torch.zeros(1)
    if rank == 0:
        tensor += 1
        dist.send(tensor=tensor, dst=1)
    else:
        dist.recv(tensor=tensor, src=0)
    print(f"blocking: rank {rank} has {tensor[0]}")


def non_blocking(rank: int, size: int) -> None:
    tensor = torch.zeros(1)
    if rank == 0:
        tensor += 1
        request = dist.isend(tensor=tensor, dst=1)
    else:
        request = dist.irecv(tensor=tensor, src=0)
    request.wait()
    print(f"non-blocking: rank {rank} has {tensor[0]}")


def init_process(rank: int, size: int, backend: str) -> None:
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ.setdefault("MASTER_PORT", "29500")
    dist.init_process_group(backend, rank=rank, world_size=size)
    for function in (blocking, non_blocking):
        function(rank, size)
    dist.destroy_process_group()


if __name__ == "__main__":
    backend = sys.argv[1] if len(sys.argv) > 1 else "hocket"
    size = 2
    mp.set_start_method("spawn")
    processes = []
    for rank in range(size):
        process = mp.Process(target=init_process, args=(rank, size, backend))
        process.start()
        processes.append(process)
    for process in processes:
        process.join()
    sys.exit(any(process.exitcode for process in processes))
