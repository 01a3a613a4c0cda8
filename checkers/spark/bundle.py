"""The bundle that is sent to the nodes of a cluster, so that nothing has to be installed there by hand.

One zip, named after its content: the sources of `checkers`, and the machine code of their kernels.
Every node must have Python of the same version with numba, numpy and pyarrow, but not Krucible itself.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from pathlib import Path

from checkers.base.cache_folder import cache_folder
from checkers.kernels.machine_code import BESIDE_SOURCES, machine_code_folder
from checkers.spark.boot import forget_unused

_NO_DATE = (1980, 1, 1, 0, 0, 0)
_ROOT = Path(__file__).resolve().parents[2]


def make_bundle() -> Path:
    """Return the zip of the present sources and machine code.  It is made once, and stays in the cache while it is
    used.
    """
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
    """Return (name inside, file): the sources, and the machine code of exactly these sources."""
    sources = sorted(path for path in (_ROOT / "checkers").rglob("*.*") if path.suffix in (".py", ".sql", ".toml"))
    files = [(str(source.relative_to(_ROOT)), source) for source in sources]
    for source in (source for source in sources if b"checkers.kernels.jit" in source.read_bytes()):
        folder = machine_code_folder(source)
        files += [(f"{BESIDE_SOURCES}/{folder.name}/{code.name}", code) for code in sorted(folder.glob("*.nb[ic]"))]
    return files
