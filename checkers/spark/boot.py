"""The first program on a node of a cluster: it unpacks the bundle and becomes the daemon.

Spark puts this file (as krucible_boot.py) and the bundle into the executor's working folder, and starts
`python -m krucible_boot` there.  The bundle is named after its content and is unpacked once per machine into the cache.
So later runs find the sources, the machine code, and what this machine compiled because its processor differs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
import uuid
import zipfile
from pathlib import Path

MODULE = "krucible_boot"
BUNDLE_VARIABLE = "KRUCIBLE_BUNDLE"
UNUSED_S_MAX = 7 * 86_400


def unpack(bundle: Path, into: Path) -> Path:
    """Return the folder the bundle is unpacked in, under `into`; several processes may do this at once.  Raises
    OSError.
    """
    folder = into / bundle.stem
    if not folder.is_dir():
        partial = into / f"{bundle.stem}.{uuid.uuid4().hex}"
        with zipfile.ZipFile(bundle) as archive:
            archive.extractall(partial)
        try:
            partial.rename(folder)
        except OSError:
            shutil.rmtree(partial, ignore_errors=True)
            if not folder.is_dir():  # the cause is not a faster concurrent process
                raise
    os.utime(folder)
    return folder


def forget_unused(into: Path, unused_s_max: float = UNUSED_S_MAX, pattern: str = "krucible-*") -> None:
    """Remove files and folders, such as bundles and their unpacked files, that were not used for this long."""
    for folder in into.glob(pattern):
        with contextlib.suppress(FileNotFoundError):  # another process removes it at the same time
            if time.time() - folder.stat().st_mtime < unused_s_max:
                continue
            if folder.is_dir():
                shutil.rmtree(folder, ignore_errors=True)
            else:
                folder.unlink()


def main() -> None:
    began = time.monotonic()
    bundle = Path(os.environ[BUNDLE_VARIABLE]).resolve()
    sys.path.insert(0, str(bundle))
    from checkers.base.cache_folder import cache_folder

    try:
        into = cache_folder() / "shipped"
        into.mkdir(exist_ok=True)
        folder = unpack(bundle, into)
        forget_unused(into)
    except OSError:  # no space or no permission there: use the executor's own folder, which is removed with it
        folder = unpack(bundle, bundle.parent)
    sys.path[0] = str(folder)
    for name in [name for name in sys.modules if name.partition(".")[0] == "checkers"]:
        del sys.modules[name]  # they were imported from the zip, but kernels need sources as files
    from checkers.spark.daemon import main as become_daemon

    become_daemon(began)


if __name__ == "__main__":
    main()
