"""How kernels are compiled: once per machine, without the interpreter's lock, and never in parallel.

Machine code is kept in a folder named after the text of the kernel's file and of all of `checkers` that it imports.
The compiler's own cache looks only at the file a kernel stands in, and would go on using old code of another file's
kernel or constant; a verdict must never depend on what was compiled last week.  The name holds nothing of where the
sources lie, so that machine code can travel with them to the nodes of a cluster (`checkers.spark.bundle`): there it
stands beside the sources and is used if the processor and the versions are the same; otherwise it is made once more.

`parallel=True` is not offered: with the OpenMP layer every worker forked after such a function was compiled dies when
it calls it, and Spark's workers are forked.
"""

from __future__ import annotations

import functools
import hashlib
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import numba
import numpy as np
from numba.core.caching import InTreeCacheLocator

from checkers.base.cache_folder import cache_folder

P = ParamSpec("P")
R = TypeVar("R")

BESIDE_SOURCES = "machine-code"
"""Folder of machine code beside the folder `checkers`, on a node of a cluster."""

_ROOT = Path(__file__).resolve().parents[2]
_IMPORTED = re.compile(
    r"^[ \t]*(?:from[ \t]+(checkers[\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^\n]*)|import[ \t]+(checkers[\w.]*))",
    re.MULTILINE,
)
_decorating = threading.Lock()


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a pure function over NumPy arrays; it keeps its Python signature for the type checker.

    Only compiled once and kept where its source is a file.
    """
    return _compiled(function)


def inner_kernel(function: Callable[P, R]) -> Callable[P, R]:
    """As `kernel`, for innermost functions, which make no array and return none; they become part of their callers.

    Their arguments outlive the call, so nothing need be counted; counting is atomic, and a function that reads ten
    arrays out of tuples spends most of its time on it, or on handing a hundred numbers over on the stack.
    """
    return _compiled(function, _nrt=False, forceinline=True)


def spliced_kernel(function: Callable[P, R]) -> Callable[P, R]:
    """As `kernel`, for what is called from one place and calls something large: never compiled on its own.

    A kernel is compiled together with all that it calls, so every layer above a large one costs its time once more.
    """
    return _compiled(function, inline="always")


def _compiled(function: Callable[P, R], **options: Any) -> Callable[P, R]:
    keep = Path(function.__code__.co_filename).is_file()
    with _decorating:
        others = numba.config.CACHE_LOCATOR_CLASSES
        numba.config.CACHE_LOCATOR_CLASSES = f"{__name__}.{ByContent.__name__}"
        try:
            return cast(Callable[P, R], numba.njit(cache=keep, nogil=True, **options)(function))
        finally:
            numba.config.CACHE_LOCATOR_CLASSES = others


class ByContent(InTreeCacheLocator):  # type: ignore[misc]
    """Tells the compiler where machine code is kept, and that the folder's name says all about its freshness."""

    def get_cache_path(self) -> str:
        return str(_folder_of(Path(self._py_file).resolve()))

    def get_source_stamp(self) -> str:
        return _folder_of(Path(self._py_file).resolve()).name


def machine_code_folder(source: Path) -> Path:
    """Where machine code of the kernels in one file is kept, as that file and all it imports of `checkers` stand."""
    text = hashlib.sha256(f"{numba.__version__} {np.__version__} {sys.version}".encode())
    for name, file in sorted(_with_imported(source, _ROOT).items()):
        text.update(f"\n{name}\n".encode() + file.read_bytes())
    return kernels_folder() / f"{source.stem}-{text.hexdigest()[:16]}"


def kernels_folder() -> Path:
    """The folder of all machine code: in the cache, or beside the sources on a node of a cluster."""
    beside = _ROOT / BESIDE_SOURCES
    return beside if beside.is_dir() else cache_folder() / "kernels"


@functools.cache
def _folder_of(source: Path) -> Path:
    return machine_code_folder(source)


def _with_imported(source: Path, root: Path) -> dict[str, Path]:
    """The file and every file of `checkers` it imports, directly or not, wherever the import stands; by name."""
    found = {source.name: source}
    waiting = [source]
    while waiting:
        for name in _modules_named(waiting.pop().read_text()):
            path = root.joinpath(*name.split("."))
            for file in (path.with_suffix(".py"), path / "__init__.py"):
                key = str(file.relative_to(root))
                if file != source and key not in found and file.is_file():
                    found[key] = file
                    waiting.append(file)
    return found


def _modules_named(text: str) -> set[str]:
    """Modules of `checkers` that a source may import; names that are none of a module's do no harm."""
    modules = set()
    for package, names, plain in _IMPORTED.findall(text):
        modules.add(package or plain)
        modules.update(f"{package}.{name}" for name in re.findall(r"\w+", names))
    return modules - {"checkers"}
