"""The environment in which demonstrations start their ranks."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@contextmanager
def one_thread(variables: Mapping[str, str] | None = None) -> Iterator[None]:
    """Makes NumPy use one thread in processes that are started inside the block, and sets these variables there.

    Ranks already share the cores; a pool of threads in each of them would only compete. A number of threads that the
    program has set stays.
    """
    chosen = {name: "1" for name in _THREAD_VARIABLES if name not in os.environ} | dict(variables or {})
    before = {name: os.environ.get(name) for name in chosen}
    os.environ.update(chosen)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
