"""Writes docs/reports/slow_links.md: runs its commands on published times, and draws their pictures.

python -m tests.network.slow_links_page
"""

import contextlib
import io
import os
import shlex
import tempfile
from pathlib import Path

from hocket.cli import main
from tests.network.measured_logs import A100_X8, H100_X16_SLOW, nccl_log

DOCUMENTS = Path(__file__).parents[2] / "docs"
PAGE = DOCUMENTS / "reports" / "slow_links.md"
LOGS = {
    "two_hosts.log": nccl_log(H100_X16_SLOW, [8, 8], header=False),
    "one_host.log": nccl_log(A100_X8[1::3], [8], header=False),
}
EXPECT = "expect two_hosts.log --machine h100 --plot slow_links.svg"
CALIBRATE = "calibrate one_host.log --machine a100 -o my.yaml --plot calibration.svg"

TEXT = """\
# From a log to the slow link

`make docs-pictures` wrote this page with the commands that it shows; do not edit it. The logs are of nccl-tests, with
times that users published (`tests/network/measured_logs.py` says where).

## What should I expect?

Two hosts with eight H100 each reach a busbw of 195 GB/s. Is that good?

```
$ hocket {expect_command}
{expect}
```

![Measured times, the prediction and the lower bound](../pictures/slow_links.svg)

*of it* is the measured speed, as a share of the prediction. No algorithm can beat the *bound*. For each range of sizes
that is slow, Hocket simulates what may be wrong, and names what predicts the measured times. Causes in one list predict
the same times, so this log does not tell them apart; runs of one host, of two hosts at a time, or with `NCCL_ALGO=Ring`
do. Check what the causes name:

|cause|check|
|---|---|
|network cards idle|`NCCL_DEBUG=INFO` says which cards NCCL uses; `NCCL_IB_HCA` and the PCIe topology decide it|
|a card, or all, at half speed|`ibstat` and `ethtool` (speed of the port), `lspci -vv` (LnkSta: width and generation)|
|links between GPUs|`nvidia-smi nvlink -s`, `rocm-smi --showtopo`|
|PCIe instead of NVLink or xGMI|`nvidia-smi topo -m`, `NCCL_P2P_LEVEL`|
|only rings, or no nvls|`NCCL_ALGO`, `NCCL_NVLS_ENABLE`|
|calls begin later|CUDA graphs, the binding of processes to cores|
|a slower fabric, sockets|`NCCL_NET`; "NET/Socket" in `NCCL_DEBUG=INFO`|

A log that does not say its ranks, for example of OSU, needs `--ranks` and `--hosts`. `hocket.expect` gives the same
answer in Python, with every number.

## A machine of your own

No shipped machine is exactly yours. So fit one to a log that you trust:

```
$ hocket {calibrate_command}
{calibrate}
```

![Measured and fitted times](../pictures/calibration.svg)

The machine file states what differs from its base:

```yaml
{yaml}```

A constant is fitted only if the log determines it. Short calls determine `launch`; long ones `bandwidth_share`; logs of
several hosts `fabric` and `nic-bandwidth`. Several logs are fitted together: `hocket calibrate one.log two.log`. Then
`--machine my.yaml` works in `hocket simulate`, `explain` and `expect`.

Hocket reads the text and the JSON (`-J`) of nccl-tests and rccl-tests, the output of OSU, and what `hocket bench`
prints. It refuses a log that is cut, has other units or contradicts itself, and names the line.
"""


def page(folder: Path) -> str:
    """Returns the page. Writes logs, pictures and the machine file into the folder."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        for name, text in LOGS.items():
            Path(name).write_text(text)
        shown = {"expect": _printed(EXPECT), "calibrate": _printed(CALIBRATE), "yaml": Path("my.yaml").read_text()}
    finally:
        os.chdir(before)
    return TEXT.format(expect_command=EXPECT, calibrate_command=CALIBRATE, **shown)


def _printed(command: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.redirect_stderr(io.StringIO()):
        assert main(shlex.split(command)) == 0
    return "\n".join(line.rstrip() for line in output.getvalue().splitlines())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        PAGE.write_text(page(Path(scratch)))
        for picture in ("slow_links.svg", "calibration.svg"):
            (DOCUMENTS / "pictures" / picture).write_text((Path(scratch) / picture).read_text())
    print(PAGE)
