"""Locks of files, waited for no longer than told: who holds one may have been stopped."""

import fcntl
import time

_LONGEST_PAUSE_SECONDS = 0.02


def acquire(descriptor: int, seconds: float) -> bool:
    """Waits at most so long for the lock, which goes with the descriptor however this process ends; whether it came.

    OSError where the file system has no locks.
    """
    deadline = time.monotonic() + seconds
    pause = 0.0005
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        else:
            return True
