"""Spans of what a PyTorch program computes while a rank traces: forward, backward and the steps of optimizers.

The forward pass is the outermost call of a module on a thread. Operations outside modules are not seen. PyTorch's own
profiler gets spans of the collectives.
"""

import contextlib
import functools
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from hocket.runtime import span

_BACKWARD = ("backward", "grad")  # of torch.autograd; methods of tensors call them


class _Open(threading.local):
    """The spans that this thread is in: of its outermost module, and of each optimizer by its id."""

    def __init__(self) -> None:
        self.module: Any = None
        self.forward: Any = None
        self.steps: dict[int, Any] = {}


_open = _Open()
_lock = threading.Lock()  # guards _num_traces and _undo
_num_traces = 0  # of the ranks of this process
_undo: list[Callable[[], None]] = []


def record_computing() -> Callable[[], None]:
    """Starts to record; the result ends that. Ranks that are threads of one process share what records."""
    global _num_traces
    with _lock:
        _num_traces += 1
        if _num_traces == 1:
            _undo.extend([*_watch_modules(), *_watch_optimizers(), *map(_watch_function, _BACKWARD)])
    return _end


def _end() -> None:
    global _num_traces
    with _lock:
        _num_traces -= 1
        if _num_traces == 0:
            while _undo:
                _undo.pop()()


def _watch_modules() -> list[Callable[[], None]]:
    # torch.compile warns of hooks that are called once more, for the module that it returns; these ignore inner calls.
    warnings.filterwarnings("ignore", r"Using `torch\.compile\(module\)` when there are global hooks", UserWarning)
    begin = register_module_forward_pre_hook(_begin_forward)
    end = register_module_forward_hook(_end_forward, always_call=True)  # also after an exception
    return [begin.remove, end.remove]


def _begin_forward(module: Any, inputs: Any) -> None:
    if torch.compiler.is_compiling() or _open.module is not None:
        return
    _open.module, _open.forward = module, span("forward")
    _open.forward.__enter__()


def _end_forward(module: Any, inputs: Any, output: Any) -> None:
    if torch.compiler.is_compiling() or _open.module is not module:
        return
    _open.forward.__exit__(None, None, None)
    _open.module = _open.forward = None


def _watch_optimizers() -> list[Callable[[], None]]:
    begin = register_optimizer_step_pre_hook(_begin_step)
    end = register_optimizer_step_post_hook(_end_step)
    return [begin.remove, end.remove]


def _begin_step(optimizer: Any, args: Any, options: Any) -> None:
    if not torch.compiler.is_compiling():
        step = _open.steps[id(optimizer)] = span("optimizer step")
        step.__enter__()


def _end_step(optimizer: Any, args: Any, options: Any) -> None:  # not called after an exception
    if not torch.compiler.is_compiling() and (step := _open.steps.pop(id(optimizer), None)) is not None:
        step.__exit__(None, None, None)


def _watch_function(name: str) -> Callable[[], None]:
    function = getattr(torch.autograd, name)

    @functools.wraps(function)
    def recorded(*args: Any, **options: Any) -> Any:
        with span("backward"):
            return function(*args, **options)

    setattr(torch.autograd, name, recorded)

    def undo() -> None:
        if getattr(torch.autograd, name) is recorded:
            setattr(torch.autograd, name, function)

    return undo


def observed(name: str, tensors: Sequence[Any], group: Any) -> Any:
    """Returns a context that the profiler shows, for example as "hocket:all_reduce"."""
    if not torch.autograd.profiler._is_profiler_enabled:
        return contextlib.nullcontext()
    what = {"group": group.group_name, "seq": group._get_sequence_number_for_group()}
    return torch._C._profiler._RecordFunctionFast(f"hocket:{name}", list(tensors), what)
