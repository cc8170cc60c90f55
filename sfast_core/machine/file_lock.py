"""A lock between processes, on a file. The system releases it when a process ends, in whatever way."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PAUSE_S = 0.005
_TAKEN = {errno.EACCES, errno.EAGAIN, errno.EWOULDBLOCK, errno.EDEADLK}

if sys.platform == "win32":
    import msvcrt

    def _take(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)

    def _give_back(descriptor: int) -> None:
        os.lseek(descriptor, 0, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _take(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _give_back(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


@contextmanager
def locked(path: Path, limit_s: float) -> Iterator[bool]:
    """Hold the lock of the file ``path`` within the block. The file is made if it is missing.

    If it can't be made, if the file system has no locks, or if another process holds the lock for longer than
    ``limit_s``, the block runs without the lock. The block is told whether it has it.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NONBLOCK", 0), 0o600)
    except OSError:
        yield False
        return
    held = False
    try:
        held = _waited_for(descriptor, limit_s)
        yield held
    finally:
        try:
            if held:
                _give_back(descriptor)
        finally:
            os.close(descriptor)


def _waited_for(descriptor: int, limit_s: float) -> bool:
    end = time.monotonic() + limit_s
    while True:
        try:
            _take(descriptor)
            return True
        except OSError as error:
            if error.errno not in _TAKEN or time.monotonic() >= end:
                return False
        time.sleep(_PAUSE_S)
