"""The process group "hocket": the methods that torch.distributed, DDP and the functional collectives call.

Each collective has the names of several versions of PyTorch. A synchronous call runs in the caller's thread and returns
a finished work; an asynchronous call runs on the communicator's stream. No call goes to another backend.
"""

import contextlib
import os
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeProcessGroup

from hocket.errors import CollectiveMismatch, HocketError
from hocket.runtime import (
    GroupCalls,
    at_process_end,
    cached_group_method,
    current_stream,
    reason_of,
    stream,
    watch_traces,
)
from hocket.torch_backend.compiling import as_they_are
from hocket.torch_backend.computing import observed, record_computing
from hocket.torch_backend.cuda import launching
from hocket.torch_backend.handles import FinishedWork, Futures, RunningMessage, RunningWork, rest
from hocket.torch_backend.meeting import Met, Options, meet
from hocket.torch_backend.monitored import MonitoredBarrier
from hocket.torch_backend.operands import (
    check_alike,
    check_even,
    check_own,
    is_asynchronous,
    root_of,
    row_of,
    rows_of,
    seconds_of,
)
from hocket.torch_backend.options import learn_options
from hocket.torch_backend.reduce_ops import divided, is_integer, reduction_of
from hocket.torch_backend.sparse import all_reduce_sparse
from hocket.torch_backend.tensors import Finish, on_current_stream, single, source, source_of, target, target_of
from hocket.torch_backend.told_errors import hide_own_frames, raise_to_torch, told_to_torch

_FINISHED = FinishedWork()
_GRACE_SECONDS = 5.0  # for operations without a waiter, when a group is left
_HANDLED = "_hocket_handled"  # attribute of an exception in whose handler a group was made

_groups: "weakref.WeakSet[ProcessGroup]" = weakref.WeakSet()


@as_they_are
class ProcessGroup(dist.ProcessGroup):
    """One rank's side of a process group, with a communicator of its own. Ranks are ranks of the group.

    given: torch.distributed's _DistributedBackendOptions. Bad arguments raise ValueError or TypeError before anything
    is sent. All later errors raise BackendError, a dist.DistBackendError; the group can then only be destroyed.
    """

    def __init__(self, given: Any, options: Options | None) -> None:
        super().__init__(given.group_rank, given.group_size)
        self._store = given.store
        hide_own_frames()
        default = dist.group.WORLD if given.global_ranks_in_group else None
        with told_to_torch:
            self._met: Met = meet(given, options, default._met if isinstance(default, ProcessGroup) else None)
        self._comm = self._met.communicator
        # For C++ code of PyTorch that looks beyond these methods: this backend has a name, and refuses every operation.
        refusing = FakeProcessGroup.Options()
        refusing.error_on_collective = True
        anchor = FakeProcessGroup._create_internal(given.group_rank, given.group_size, refusing)
        for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
            self._register_backend(torch.device(device), dist.ProcessGroup.BackendType.CUSTOM, anchor)
        self._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
        self._futures = Futures()
        self._monitored_barrier = MonitoredBarrier(self._met.store, given.group_rank, given.group_size)
        self._calls = GroupCalls(self._comm, _FINISHED, partial(RunningMessage, self._futures), raise_to_torch)
        self._sequence = 0  # number of calls that reached Python
        self._coalesced: list[RunningWork] | None = None  # between _start_coalescing and _end_coalescing
        if (handled := sys.exc_info()[1]) is not None:
            vars(handled)[_HANDLED] = True
        _groups.add(self)

    # What it is -------------------------------------------------------------------------------------------------------

    def getBackendName(self) -> str:  # noqa: N802
        """Returns the name of the backend."""
        return "hocket"

    def get_group_store(self) -> Any:
        """Returns the store with which the group was made."""
        return self._store

    @property
    def communicator(self) -> Any:
        """Hocket's communicator of this group, for operations that PyTorch does not have."""
        return self._comm

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the timeout of operations that give none."""
        self._met = replace(self._met, seconds=timeout.total_seconds())
        self._comm.configure(timeout=self._met.seconds)

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self) -> None:
        """Sets the sequence number to 0, as on all ranks."""

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence + int(self._calls.num_repeated)

    # Collectives ------------------------------------------------------------------------------------------------------

    @cached_group_method
    def allreduce(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> Any:
        """Folds the tensors of all ranks into each of them."""
        tensor = single("all_reduce", tensors)
        if tensor.layout is not torch.strided:
            return self._sparse(tensor, opts, timeout)
        x, finish = target("all_reduce", tensor)
        op = reduction_of(opts)
        return self._run("all_reduce", (x,), {"op": op}, [tensor], [tensor], finish, opts, timeout)

    def allreduce_coalesced(self, tensors: Sequence[Any], opts: Any = None) -> Any:
        """Does an allreduce of each tensor."""
        return self._together(lambda: [self.allreduce(tensor, opts) for tensor in tensors], tensors, opts)

    @cached_group_method
    def broadcast(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> Any:
        """Copies the root's tensor to all ranks."""
        tensor, root = single("broadcast", tensors), root_of(opts)
        x, finish = (source("broadcast", tensor), None) if root == self.rank() else target("broadcast", tensor)
        return self._run("broadcast", (x, root), {}, [tensor], [tensor], finish, opts, timeout)

    @cached_group_method
    def reduce(self, tensors: Any, opts: Any = None, op: Any = None, timeout: timedelta | None = None) -> Any:
        """Folds the tensors of all ranks into the root's."""
        tensor, root = single("reduce", tensors), root_of(opts)
        if root == self.rank():
            x, finish = target("reduce", tensor)
        else:
            x, finish = source("reduce", tensor), None
        arguments = {"op": reduction_of(opts if op is None else op)}
        return self._run("reduce", (x, root), arguments, [tensor], [tensor], finish, opts, timeout)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Gives each rank the tensors of all ranks, as a list; they may differ in length."""
        tensor, outputs = single("all_gather", inputs), row_of(outputs)
        self._check_number("all_gather", outputs)
        x = source("all_gather", tensor)
        out, finish = target_of("all_gather", outputs, tensor, self.rank())
        check_own("all_gather", self.rank(), outputs, tensor)
        counts = [output.numel() for output in outputs]
        if len(set(counts)) == 1:
            return self._run("all_gather", (x,), {"out": out}, [tensor], outputs, finish, opts)
        return self._run("all_gather_v", (x.reshape(-1), counts), {"out": out}, [tensor], outputs, finish, opts)

    @cached_group_method
    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> Any:
        """Gives each rank the tensors of all ranks, as one tensor."""
        x = source("all_gather", input)
        out, finish = target("all_gather", output)
        return self._run("all_gather", (x,), {"out": out}, [input], [output], finish, opts)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Sequence[Any], inputs: Sequence[Any], opts: Any = None) -> Any:
        """Does an all_gather_single of each pair."""
        pairs = list(zip(outputs, inputs, strict=True))
        return self._together(lambda: [self.all_gather_single(*pair, opts) for pair in pairs], outputs, opts)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather_coalesced(self, output_lists: Any, inputs: Sequence[Any], opts: Any = None) -> Any:
        """Does an allgather of each input; output_lists[rank][i] gets input i of that rank."""
        rows = [[outputs[i] for outputs in output_lists] for i in range(len(inputs))]
        return self._together(
            lambda: [self.allgather([row], [tensor], opts) for row, tensor in zip(rows, inputs, strict=True)],
            [tensor for outputs in output_lists for tensor in outputs],
            opts,
        )

    def gather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None) -> Any:
        """Gives the root the tensors of all ranks, as a list."""
        tensor, root = single("gather", inputs), root_of(opts)
        x = source("gather", tensor)
        if root != self.rank():
            return self._run("gather", (x, root), {}, [tensor], [], None, opts, timeout)
        outputs = row_of(outputs)
        self._check_number("gather", outputs)
        check_alike("gather", [*outputs, tensor])
        out, finish = target_of("gather", outputs, tensor, root)
        return self._run("gather", (x, root), {"out": out}, [tensor], outputs, finish, opts, timeout)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None) -> Any:
        """Gives each rank one of the root's tensors."""
        tensor, root = single("scatter", outputs), root_of(opts)
        x, (out, finish) = None, target("scatter", tensor)
        if root == self.rank():
            inputs = row_of(inputs)
            self._check_number("scatter", inputs)
            check_alike("scatter", [*inputs, tensor])
            x = source_of("scatter", inputs, tensor, root)
        return self._run("scatter", (x, root), {"out": out}, [tensor], [tensor], finish, opts, timeout)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None) -> Any:
        """Folds the lists of all ranks, tensor by tensor; each rank gets one result. They may differ in length."""
        tensor, inputs = single("reduce_scatter", outputs), row_of(inputs)
        self._check_number("reduce_scatter", inputs)
        out, finish = target("reduce_scatter", tensor)
        x = source_of("reduce_scatter", inputs, tensor, self.rank())
        check_own("reduce_scatter", self.rank(), inputs, tensor)
        arguments = {"op": reduction_of(opts), "out": out}
        counts = [part.numel() for part in inputs]
        if len(set(counts)) == 1:
            return self._run("reduce_scatter", (x,), arguments, inputs, [tensor], finish, opts, timeout)
        return self._run("reduce_scatter_v", (x, counts), arguments, inputs, [tensor], finish, opts, timeout)

    @cached_group_method
    def reduce_scatter_single(self, output: Any, input: Any, opts: Any = None) -> Any:
        """Folds the tensors of all ranks; each rank gets its part of the result."""
        x = source("reduce_scatter", input)
        out, finish = target("reduce_scatter", output)
        arguments = {"op": reduction_of(opts), "out": out}
        return self._run("reduce_scatter", (x,), arguments, [input], [output], finish, opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: Sequence[Any], inputs: Sequence[Any], opts: Any = None) -> Any:
        """Does a reduce_scatter_single of each pair."""
        pairs = list(zip(outputs, inputs, strict=True))
        return self._together(lambda: [self.reduce_scatter_single(*pair, opts) for pair in pairs], outputs, opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def alltoall(self, outputs: Sequence[Any], inputs: Sequence[Any], opts: Any = None) -> Any:
        """Sends tensor j of rank i to index i of rank j; tensors may differ in length."""
        self._check_number("all_to_all", outputs)
        self._check_number("all_to_all", inputs)
        x = source_of("all_to_all", inputs)
        out, finish = target_of("all_to_all", outputs)
        check_own("all_to_all", self.rank(), outputs, inputs[self.rank()])
        counts = ([tensor.numel() for tensor in inputs], [tensor.numel() for tensor in outputs])
        return self._run("all_to_all_v", (x, *counts), {"out": out}, inputs, outputs, finish, opts)

    @cached_group_method
    def all_to_all_single(
        self, output: Any, input: Any, output_splits: Sequence[int], input_splits: Sequence[int], opts: Any = None
    ) -> Any:
        """Does an alltoall of rows of one tensor. Either all ranks give splits (rows for each rank), or none does."""
        x = source("all_to_all", input)
        out, finish = target("all_to_all", output)
        if not output_splits and not input_splits:
            for name, tensor in (("input", input), ("output", output)):
                check_even(name, tensor, self.size())
            return self._run("all_to_all", (x.reshape(-1),), {"out": out}, [input], [output], finish, opts)
        size = self.size()
        counts = (rows_of("input", input, input_splits, size), rows_of("output", output, output_splits, size))
        sent, kept = (one[self.rank()] for one in counts)
        if sent != kept:
            raise ValueError(
                f"all_to_all: expected part {self.rank()} of input and output, which this rank keeps, to have the same "
                f"length; found {sent} and {kept} elements"
            )
        return self._run("all_to_all_v", (x.reshape(-1), *counts), {"out": out}, [input], [output], finish, opts)

    alltoall_base = all_to_all_single

    @cached_group_method
    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> Any:
        """Returns once every rank has called it."""
        return self._run("barrier", (), {}, [], [], None, opts, timeout)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Waits for all ranks and names missing ones. It uses the store, so the group stays usable if it fails."""
        self._monitored_barrier(self._met.seconds if timeout is None else timeout.total_seconds(), wait_all_ranks)

    # Messages ---------------------------------------------------------------------------------------------------------

    @cached_group_method
    def send(self, tensors: Any, dst: int, tag: int = 0) -> Any:
        """Sends to a rank; the tensor may be written again once the work is done."""
        tensor = single("send", tensors)
        x = source("send", tensor)
        return self._message("send", self._comm.lower.one_message("send", True, x, dst, tag), tensor, None)

    @cached_group_method
    def recv(self, tensors: Any, src: int, tag: int = 0) -> Any:
        """Receives from a rank."""
        tensor = single("recv", tensors)
        x, finish = target("recv", tensor)
        return self._message("recv", self._comm.lower.one_message("recv", False, x, src, tag), tensor, finish)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        """Receives from any rank; the work's source_rank() returns which."""
        return self.recv(tensors, -1, tag)

    recvAnysource = recv_anysource  # noqa: N815

    # Coalescing -------------------------------------------------------------------------------------------------------

    def _start_coalescing(self, device: Any = None) -> None:
        self._coalesced, self._calls.paused = [], True

    def _end_coalescing(self, device: Any = None) -> Any:
        begun, self._coalesced, self._calls.paused = self._coalesced or [], None, False
        return self._joined(begun, [tensor for work in begun for tensor in work.tensors])

    start_coalescing, end_coalescing = _start_coalescing, _end_coalescing

    # The end ----------------------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Leaves the group when all launched collectives are done; messages without a partner are aborted.

        While an exception propagates, for example in a `finally`, all operations are aborted at once, because the other
        ranks may never do their part; they get the exception as the reason. An exception that was already there when
        the group was made does not count: the group was made inside its handler.

        Raises BackendError if the ranks differ in a call that returned here. Other errors that ranks report now are not
        raised: the program is done with the group.
        """
        error = sys.exc_info()[1]
        fails = error is not None and not isinstance(error, SystemExit) and _HANDLED not in vars(error)
        if fails:
            self._finish(time.monotonic(), error)
        else:
            for work in self._comm.lower.pending(messages=False):
                rest(work)
            self._finish(time.monotonic() + _GRACE_SECONDS)
        try:
            self._close()
        except HocketError as found:
            if isinstance(found, CollectiveMismatch) and not fails:
                raise_to_torch(found)

    def abort(self) -> None:
        """Aborts all operations under way, on this rank and on the others."""
        self._give_up("its process group was aborted")
        with contextlib.suppress(HocketError):
            self._close()

    def _finish(self, deadline: float, error: BaseException | None = None) -> None:
        """Ends the group; operations under way have until the deadline. Ranks that still wait then get the error."""
        for work in self._comm.lower.pending():
            rest(work, max(0.0, deadline - time.monotonic()))
        if self._comm.lower.pending():
            self._give_up("it left with operations under way" if error is None else reason_of(error))
        elif error is not None:
            self._give_up(reason_of(error), only_later=True)
        with contextlib.suppress(HocketError):
            self._comm.lower.finish()

    def _give_up(self, reason: str, only_later: bool = False) -> None:
        with contextlib.suppress(HocketError):
            self._comm.lower.abort(reason, only_later=only_later)

    def _close(self) -> None:
        _groups.discard(self)
        try:
            self._comm.close()
        finally:
            self._futures.close()

    # The way into the communicator ------------------------------------------------------------------------------------

    def _run(
        self,
        name: str,
        arguments: tuple[Any, ...],
        options: dict[str, Any],
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        finish: Finish,
        opts: Any,
        timeout: timedelta | None = None,
    ) -> Any:
        """Runs or launches a collective of the communicator."""
        self._sequence += 1
        seconds = seconds_of(opts, timeout)
        if seconds is not None:
            options["timeout"] = seconds
        if options.get("op") == "avg" and is_integer(written := options.get("out", arguments[0])):
            options["op"] = "sum"
            if name != "reduce" or arguments[1] == self.rank():
                finish = divided(written, self.size(), finish)
        if torch.autograd.profiler._is_profiler_enabled:
            with observed(name, inputs, self), launching(inputs):
                return self._call(name, arguments, options, outputs, finish, opts)
        with launching(inputs):
            return self._call(name, arguments, options, outputs, finish, opts)

    def _call(
        self,
        name: str,
        arguments: tuple[Any, ...],
        options: dict[str, Any],
        outputs: Sequence[Any],
        finish: Finish,
        opts: Any,
    ) -> Any:
        method = getattr(self._comm, name)
        try:
            if not is_asynchronous(opts) and self._coalesced is None:
                method(*arguments, **options)
                on_current_stream(finish)
                return _FINISHED if finish is None else FinishedWork()  # a call with a finish is not to be repeated
            begun = method(*arguments, **options, async_op=True)
        except HocketError as error:
            raise_to_torch(error)
        return self._launched(RunningWork([begun], outputs, [finish], self._futures))

    def _sparse(self, tensor: Any, opts: Any, timeout: timedelta | None) -> Any:
        """Runs an allreduce of sparse tensors: several steps in turn, in the caller's thread, as the host."""
        self._sequence += 1
        if (before := current_stream()) is not None:
            before.synchronize()
        with told_to_torch, observed("all_reduce", [], self), stream(None):
            all_reduce_sparse(self._comm, tensor, reduction_of(opts), timeout=seconds_of(opts, timeout))
        return FinishedWork([tensor])

    def _message(self, name: str, group: Any, tensor: Any, finish: Finish) -> Any:
        """Begins an isend or irecv of the communicator; errors name it `name`."""
        self._sequence += 1
        with told_to_torch, observed(name, [tensor], self), launching([tensor]):
            begun = self._comm.lower.begin(group, name)
        if finish is None:
            return self._launched(RunningMessage(self._futures, begun[0], tensor))
        return self._launched(RunningWork(begun, [tensor], [finish], self._futures, in_order=False))

    def _launched(self, work: RunningWork) -> Any:
        """Returns the work, unless it is one of several that are launched together."""
        if self._coalesced is None:
            return work
        self._coalesced.append(work)
        return _FINISHED

    def _together(self, launch: Callable[[], list[Any]], tensors: Sequence[Any], opts: Any) -> Any:
        """Returns one work for all operations that `launch` begins."""
        begun = launch()
        if self._coalesced is not None or not is_asynchronous(opts):
            return _FINISHED
        return self._joined(begun, tensors)

    def _joined(self, begun: Sequence[Any], tensors: Sequence[Any]) -> Any:
        begun = [one for one in begun if isinstance(one, RunningWork)]  # works of sparse tensors are already done
        if not begun:
            return FinishedWork(tensors)
        works = [work for one in begun for work in one.works]
        finishes = [lambda one=one: one.wait() for one in begun]
        return RunningWork(works, tensors, finishes, self._futures, all(one.in_order for one in begun))

    def _check_number(self, name: str, tensors: Sequence[Any]) -> None:
        if len(tensors) != self.size():
            raise ValueError(
                f"{name}: expected a list of {self.size()} tensors, one for each rank; found {len(tensors)}"
            )


learn_options()
watch_traces(record_computing)


@at_process_end
def _leave_all(error: BaseException | None) -> None:
    """Aborts operations without a waiter, so that exit cannot hang; at once, with the reason, after an exception."""
    deadline, groups = time.monotonic() + _GRACE_SECONDS, list(_groups)
    for group in groups:
        if error is None:
            group._finish(deadline)
        else:
            group._give_up(reason_of(error))
    for group in groups:  # their communicators are closed later, with all others of the process, and tell what differs
        group._futures.close()


def _forget_all() -> None:  # in a forked child: operations under way belong to its parent
    while _groups:
        _groups.pop()


os.register_at_fork(after_in_child=_forget_all)
