"""A process group that ends when this process ends, even by SIGKILL.

Its leader is a guard: a fork of this process that only waits for the end of a pipe whose other end only this process
holds. Then the guard kills the group, with all processes that its members have started.
"""

import contextlib
import os
import signal

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""The signals that a launcher passes on to what it has started. A guard ignores them."""


class GuardedGroup:
    """The group and its guard. number: give it to subprocess.Popen as process_group."""

    def __init__(self) -> None:
        self.number, self._hold = _start_guard()

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to all processes of the group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.number, number)

    def close(self) -> None:
        """Ends the guard, after `send(signal.SIGKILL)`. Members are left to those that wait for them."""
        os.waitpid(self.number, 0)
        os.close(self._hold)


def _start_guard() -> tuple[int, int]:
    """Starts the guard; returns its process group and the descriptor whose end it waits for."""
    end, hold = os.pipe2(os.O_CLOEXEC)
    process = os.fork()
    if process == 0:
        try:
            os.setpgid(0, 0)
            for number in (*FORWARDED, signal.SIGTSTP, signal.SIGPIPE):
                signal.signal(number, signal.SIG_IGN)
            # The guard must keep no pipe open, above all not the one whose end it waits for.
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(end, 3)
            for descriptor in (0, 1, 2):
                os.dup2(nothing, descriptor)
            os.closerange(4, os.sysconf("SC_OPEN_MAX"))
            os.read(3, 1)
            os.killpg(0, signal.SIGKILL)
        finally:
            os._exit(1)
    os.close(end)
    # Parent and guard both make the group, because either may be first. The second call may be refused.
    with contextlib.suppress(OSError):
        os.setpgid(process, process)
    return process, hold
