"""Slurm on hosts of the lab: munge and the controller on the first one, a daemon on each."""

import os
from collections.abc import Sequence
from pathlib import Path

from tests.engines import installed
from tests.engines.programs import Programs
from tests.hosts.lab import Host
from tests.waiting import wait_until

NUM_CPUS = 4  # of each host, as Slurm is told
CONFIGURATION = """
ClusterName=lab
SlurmctldHost={first.name}({first.address})
SlurmUser=root
AuthInfo=socket={folder}/munge.socket
PluginDir={plugins}
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdSpoolDir={folder}/spool.%n
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
"""


def start(hosts: Sequence[Host], programs: Programs, folder: Path) -> None:
    """Start Slurm, which ends with the lab, and add its commands to the programs. folder: for its files."""
    root = installed.debian()
    libraries = next(root.glob("usr/lib/*-linux-gnu*"))
    plugins = libraries / "slurm-wlm"
    nodes = [f"NodeName={host.name} NodeAddr={host.address} CPUs={NUM_CPUS}" for host in hosts]
    text = CONFIGURATION.format(first=hosts[0], folder=folder, plugins=plugins)
    (folder / "slurm.conf").write_text("\n".join([text, *nodes, "PartitionName=all Nodes=ALL Default=YES", ""]))
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nIgnoreSystemd=yes\n")
    (folder / "state").mkdir()
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o600)
    programs.add_folder(root / "usr/bin")
    programs.more = {"SLURM_CONF": str(folder / "slurm.conf"), "LD_LIBRARY_PATH": f"{libraries}:{plugins}"}

    def serve(host: Host, name: str, *options: str | Path) -> None:
        with (folder / f"{name}.{host.name}.log").open("wb") as log:
            host.popen([root / "usr/sbin" / name, *options], env=programs.variables, stdout=log, stderr=log)

    places = [f"--{what}-file={folder}/munge.{what}" for what in ("key", "pid", "log", "seed")]
    serve(hosts[0], "munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *places)
    wait_until((folder / "munge.socket").exists)
    serve(hosts[0], "slurmctld-wlm", "-D")
    for host in hosts:
        serve(host, "slurmd-wlm", "-D", "-N", host.name, "-d", root / "usr/sbin/slurmstepd-wlm")
    wait_until(lambda: _num_idle(hosts[0], programs) == str(len(hosts)))


def _num_idle(host: Host, programs: Programs) -> str:
    words = ["sinfo", "--noheader", "--states=idle", "--format=%D"]
    return host.run(words, env=programs.variables, check=False).stdout.strip()
