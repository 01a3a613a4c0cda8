"""The bundle that is sent to the nodes of a cluster, so that a user does not have to install Krucible there.

The bundle is a zip file, named after its content: the sources of `checkers`, and the machine code of their kernels.
Every node must have Python of the same version with numba, numpy and pyarrow, but not Krucible itself.

Spark puts a copy of this file (as krucible_boot.py) and the bundle into the executor's working folder, and starts
`python -m krucible_boot` there.  This process unpacks the bundle into the machine's cache, unless the cache has it, and
then becomes the daemon.  So later runs find the sources, the machine code, and the kernels that this machine compiled
because its processor differs.
"""

from __future__ import annotations

import contextlib
import hashlib
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
_NO_DATE = (1980, 1, 1, 0, 0, 0)


def make_bundle() -> Path:
    """Return the zip file of the current sources and machine code; make it if it is not in the cache."""
    from checkers.base.cache_folder import cache_folder  # krucible_boot.py is alone when a node starts it

    files = _files()
    content = hashlib.sha256()
    for inside, file in files:
        content.update(f"{inside}\n".encode() + hashlib.sha256(file.read_bytes()).digest())
    folder = cache_folder() / "bundles"
    folder.mkdir(exist_ok=True)
    forget_unused(folder, unused_s_max=86_400)  # a bundle is built again in half a second
    bundle = folder / f"krucible-{content.hexdigest()[:24]}.zip"
    if not bundle.exists():
        partial = bundle.with_suffix(f".{os.getpid()}")
        with zipfile.ZipFile(partial, "w") as archive:
            for inside, file in files:
                archive.writestr(zipfile.ZipInfo(inside, _NO_DATE), file.read_bytes(), zipfile.ZIP_DEFLATED, 1)
        partial.replace(bundle)
    os.utime(bundle)
    return bundle


def _files() -> list[tuple[str, Path]]:
    """Return (name in the zip file, file) of the sources and of the machine code of exactly these sources."""
    from checkers.kernels.machine_code import BESIDE_SOURCES, machine_code_folder

    root = Path(__file__).resolve().parents[2]
    sources = sorted(path for path in (root / "checkers").rglob("*.*") if path.suffix in (".py", ".sql", ".toml"))
    files = [(str(source.relative_to(root)), source) for source in sources]
    for source in (source for source in sources if b"checkers.kernels.jit" in source.read_bytes()):
        folder = machine_code_folder(source)
        files += [(f"{BESIDE_SOURCES}/{folder.name}/{code.name}", code) for code in sorted(folder.glob("*.nb[ic]"))]
    return files


def unpack(bundle: Path, into: Path) -> Path:
    """Unpack a bundle under `into` and return its folder.  Several processes may do this at once.  Raises OSError."""
    folder = into / bundle.stem
    if not folder.is_dir():
        partial = into / f"{bundle.stem}.{uuid.uuid4().hex}"
        with zipfile.ZipFile(bundle) as archive:
            archive.extractall(partial)
        try:
            partial.rename(folder)
        except OSError:
            shutil.rmtree(partial, ignore_errors=True)
            if not folder.is_dir():  # otherwise another process unpacked the bundle first
                raise
    os.utime(folder)
    return folder


def forget_unused(into: Path, unused_s_max: float = UNUSED_S_MAX, pattern: str = "krucible-*") -> None:
    """Remove the files and folders that match `pattern` and were not used for `unused_s_max` seconds."""
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
    except OSError:  # no space or no permission: use the executor's own folder, which Spark removes with the executor
        folder = unpack(bundle, bundle.parent)
    sys.path[0] = str(folder)
    for name in [name for name in sys.modules if name.partition(".")[0] == "checkers"]:
        del sys.modules[name]  # these modules were imported from the zip file, but kernels need sources as files
    from checkers.spark.daemon import main as become_daemon

    become_daemon(began)


if __name__ == "__main__":
    main()
