"""File locks with a limited wait: the process that holds one may be stopped, and would then never release it."""

import fcntl
import time

_LONGEST_PAUSE_SECONDS = 0.02


def acquire(descriptor: int, seconds: float) -> bool:
    """Waits at most `seconds` for the lock, and returns whether it got the lock.

    The lock ends with the descriptor, however this process ends. Raises OSError if the file system has no locks.
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
