"""Measures building, proving and lowering of schedules for very many ranks: CPU seconds and memory, one process each.

python benchmarks/large_schedules.py --ranks 16384

It proves laws 1, 2 and 5, then makes the plan of one rank in a new process. The line says if a schedule does not exist
or needs more than 8 GiB.
"""

import argparse
import json
import math
import resource
import subprocess
import sys
import time

from hocket.algorithms import ALGORITHMS
from hocket.errors import HocketError
from hocket.schedule import lower, verify

MOST_BYTES = 8 << 30

NAMES = [
    *((collective, "bruck") for collective in ("all_gather", "reduce_scatter", "all_reduce")),
    *((collective, "nonuniform_bruck") for collective in ("all_gather", "reduce_scatter", "all_reduce")),
    *((collective, "nonuniform_hierarchical_ring") for collective in ("all_gather", "reduce_scatter", "all_reduce")),
    ("all_reduce", "double_tree"),
    ("all_reduce", "hierarchical"),
    ("all_to_all", "bruck"),
]


def measure(collective: str, name: str, num_ranks: int, *, plan: bool) -> dict[str, float | str]:
    """Returns the CPU seconds to build and to prove or lower, and the peak memory of this process in GiB."""
    algorithm = ALGORITHMS[collective, name]
    size = math.isqrt(num_ranks)
    groups = (size,) * (num_ranks // size) if name == "hierarchical" and num_ranks == size * size else None
    started = time.process_time()
    schedule = algorithm.build(num_ranks, groups=groups)
    found: dict[str, float | str] = {"build": time.process_time() - started}
    started = time.process_time()
    if plan:
        lower(schedule, num_ranks // 3, in_place=False)
    else:
        declared = algorithm.declared(num_ranks, groups=groups)
        found["method"] = verify(schedule, declared=declared, laws=(1, 2, 5)).method
    found["plan" if plan else "laws"] = time.process_time() - started
    found["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return found


def in_a_child(collective: str, name: str, num_ranks: int, *, plan: bool) -> dict[str, float | str]:
    """Measures the same in a new process."""
    what = [sys.executable, __file__, "--ranks", str(num_ranks), "--only", collective, name, *(["--plan"] * plan)]
    child = subprocess.run(what, capture_output=True, text=True, check=False)
    if child.returncode:
        return {"error": child.stderr.strip().rpartition("\n")[2] or f"exit status {child.returncode}"}
    return dict(json.loads(child.stdout))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=16384, help="ranks of each schedule (16384)")
    parser.add_argument("--only", nargs=2, metavar=("COLLECTIVE", "NAME"), help="measure one algorithm; print JSON")
    parser.add_argument("--plan", action="store_true", help="with --only: lower for one rank, do not prove")
    arguments = parser.parse_args()
    if arguments.only:
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
        try:
            print(json.dumps(measure(*arguments.only, arguments.ranks, plan=arguments.plan)))
        except (HocketError, ValueError, MemoryError) as error:
            sys.exit(str(error))
        return
    columns = f"{'build':>8}{'laws 1,2,5':>12}{'memory':>10}{'one plan':>10}{'memory':>10}  law 2"
    print(f"{f'{arguments.ranks} ranks':<44}{columns}")
    for collective, name in NAMES:
        title = f"{collective} {name}"
        if (collective, name) not in ALGORITHMS:
            print(f"{title:<44}  not registered")
            continue
        proof = in_a_child(collective, name, arguments.ranks, plan=False)
        plan = in_a_child(collective, name, arguments.ranks, plan=True)
        if "error" in proof or "error" in plan:
            print(f"{title:<44}  {proof.get('error') or plan['error']}")
            continue
        print(
            f"{title:<44}{proof['build']:>6.2f} s{proof['laws']:>10.2f} s{proof['memory']:>6.2f} GiB"
            f"{plan['plan']:>8.2f} s{plan['memory']:>6.2f} GiB  {proof['method']}",
            flush=True,
        )


if __name__ == "__main__":
    main()
