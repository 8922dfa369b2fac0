"""all_reduce of sparse tensors (COO): gathers the entries of all ranks and adds them up."""

from typing import Any

import torch

from hocket.torch_backend.tensors import source


def all_reduce_sparse(communicator: Any, tensor: Any, op: Any, **options: Any) -> None:
    """Replaces the tensor by the sum over ranks, coalesced. Raises ValueError on all ranks if their shapes differ.

    options: keyword arguments of the communicator's all_gather.
    """
    if tensor.layout is not torch.sparse_coo or op != "sum":
        raise ValueError(
            f"all_reduce: expected a dense tensor, or a sum of torch.sparse_coo ones; found {op!r} of a "
            f"{tensor.layout} tensor; pass x.to_dense()"
        )
    own = tensor.detach().coalesce()
    shape = [own.sparse_dim(), *own.shape]
    # Ranks may differ even in the number of dims, so they first exchange a fixed number of words.
    said = communicator.all_gather(source("all_reduce", torch.tensor([own._nnz(), hash(tuple(shape))])), **options)
    if len(set(said[1::2].tolist())) > 1:
        raise ValueError(
            f"all_reduce: expected sparse tensors of one shape on all ranks, found {tuple(own.shape)} on this rank"
        )
    counts = said[::2].tolist()
    indices = _gathered(communicator, own.indices().t().contiguous(), counts, options).t()
    values = _gathered(communicator, own.values(), counts, options)
    with torch.no_grad():
        total = torch.sparse_coo_tensor(indices, values, own.shape, check_invariants=False)  # sums of valid tensors
        tensor.copy_(total.coalesce())


def _gathered(communicator: Any, rows: Any, counts: list[int], options: dict[str, Any]) -> Any:
    """Returns the rows of all ranks, concatenated."""
    row = rows[0].numel() if rows.size(0) else rows.new_empty(rows.shape[1:]).numel()
    out = rows.new_empty((sum(counts), *rows.shape[1:]))
    array = source("all_reduce", out.view(-1))
    communicator.all_gather_v(
        source("all_reduce", rows.reshape(-1)), [count * row for count in counts], out=array, **options
    )
    return out
