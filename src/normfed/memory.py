"""A process that trains networks asks for the same big blocks again and again; glibc hands each back to the system and
faults it in anew (30 % of a round of the digits network on two cores). `keep_big_blocks` tells it not to."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LIMIT = 1 << 30


def keep_big_blocks() -> bool:
    """Keeps freed memory in the process, up to blocks of 1 GiB; True where that could be set (Linux with glibc).

    A decision for a whole program, so the command line takes it and the library does not.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LIMIT) and mallopt(_M_TRIM_THRESHOLD, _LIMIT))
