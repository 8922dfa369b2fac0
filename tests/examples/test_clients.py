"""Third-party programs for PyTorch run on Hocket, if they are installed."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("example", "package"),
    [
        ("accelerate_sgd.py", "accelerate"),
        ("lightning_sgd.py", "lightning"),
        ("deepspeed_zero.py", "deepspeed"),
    ],
)
def test_client(example: str, package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not among what make test installs: pip install {package}")
    printed = []
    for backend in ("hocket", "gloo"):
        command = [sys.executable, f"examples/clients/{example}", backend]
        if "torchrun" in (ROOT / command[1]).read_text():
            command[1:1] = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=100, env=environment, check=False
        )
        assert done.returncode == 0, done.stderr
        found = re.search(rf"^{backend}, 2 ranks: loss (\d\.\d+)$", done.stdout, re.MULTILINE)
        assert found, done.stdout
        printed.append(found[1])
    assert printed[0] == printed[1]
