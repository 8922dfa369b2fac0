"""`python -m tests.fuzz.worker TARGET RUNS SEED` handles the corpus of a target of Python, and then drawn inputs.

A finding ends it: standard error has the traceback and the input. An input may take some seconds, and half a GiB.
"""

import resource
import signal
import sys
import traceback
from random import Random
from typing import Any, NoReturn

from tests.fuzz import inputs
from tests.fuzz.targets import TARGETS, Target

_MOST_SECONDS = 20  # of some thousand inputs, on a busy machine, too
_MOST_BYTES = 512 << 20


def run(target: Target, num_runs: int, seed: int) -> int:
    """Return 0, or 1 where there is a finding."""
    assert target.handle is not None
    corpus = inputs.read(target.name)
    choose = Random(seed)
    data, num_done = b"", 0
    try:
        for data in corpus:
            target.handle(data)
        for num_done in range(num_runs):
            if num_done % 4096 == 0:
                signal.alarm(_MOST_SECONDS)
            data = target.draw(choose) if target.draw is not None else inputs.mutate(corpus, choose)
            target.handle(data)
    except Exception:
        traceback.print_exc()
        print(f"after {num_done} runs\ninput {data.hex()}", file=sys.stderr)
        return 1
    print(f"{len(corpus)} inputs of the corpus, {num_runs} others")
    return 0


def _too_long(*_: Any) -> NoReturn:
    raise TimeoutError(f"an input takes more than {_MOST_SECONDS} seconds")


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, _too_long)
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
    sys.exit(run(TARGETS[sys.argv[1]], int(sys.argv[2]), int(sys.argv[3])))
