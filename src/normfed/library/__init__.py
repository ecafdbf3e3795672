"""Datasets on this machine: got from their public homes, brought from what a user downloaded, checked, looked at.

Training imports nothing of this: it never downloads.
"""

from __future__ import annotations

from normfed.library.bring import bring
from normfed.library.check import check
from normfed.library.fetch import fetch

__all__ = ["bring", "check", "fetch"]
