"""sshd of OpenSSH on hosts of the lab, and the command that connects to them."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.engines import installed
from tests.hosts.lab import Host

# sshd wants a user and a folder of its own; both are there for this host alone.
SCRIPT = """set -e
mount -t tmpfs tmpfs /run
mkdir /run/sshd
mount --bind "$0/passwd" /etc/passwd
LD_LIBRARY_PATH="$2" exec "$1/sshd" -D -e -f "$0/sshd_config"
"""


@contextmanager
def serving(hosts: list[Host], folder: Path) -> Iterator[str]:
    """Within this block, hosts take connections of ssh; gives the command that connects."""
    programs, libraries = installed.debian() / "usr/sbin", next(installed.debian().glob("usr/lib/*-linux-gnu*"))
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    (folder / "passwd").write_text(
        f"{Path('/etc/passwd').read_text()}sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin\n"
    )
    (folder / "sshd_config").write_text(
        f"HostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\nStrictModes no\nPidFile none\nUsePAM no\n"
        "PermitRootLogin yes\n"
    )
    for host in hosts:
        server = host.popen(["sh", "-c", SCRIPT, folder, programs, libraries], stderr=-1, text=True)
        assert "listening" in (said := server.stderr.readline()), said + server.stderr.read()
    yield f"ssh -i {folder}/user -o UserKnownHostsFile={folder}/known -o StrictHostKeyChecking=no"
