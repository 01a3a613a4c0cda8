"""Machine code of kernels: compiled once per machine, without the interpreter's lock, and never in parallel.

The cache keeps machine code in one folder per kernel file.  The folder's name is a hash of that file and of every file
of `checkers` that it imports.  The compiler's own cache checks only the kernel's own file.  It would keep old code
after a change to an imported kernel or constant, and verdicts would depend on that.

The name does not depend on where the sources are.  So machine code can travel with them to the nodes of a cluster
(`checkers.spark.bundle`).  A node uses it if processor and versions match, and compiles again otherwise.

`parallel=True` is not offered.  With the OpenMP layer, a worker forked after such a function was compiled dies when it
calls the function, and Spark forks its workers.

Importing this file loads the compiler, which takes a quarter of a second.
"""

from __future__ import annotations

import functools
import hashlib
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import numba
import numpy as np
from llvmlite import binding as llvm
from llvmlite import ir
from numba import types
from numba.core.caching import CompileResultCacheImpl, FunctionCache, InTreeCacheLocator
from numba.core.codegen import JITCodeLibrary
from numba.core.runtime import rtsys
from numba.extending import intrinsic

from checkers.base.cache_folder import cache_folder
from checkers.kernels.jit import BEFORE_COMPILING, Kernel, KernelCopies

BESIDE_SOURCES = "machine-code"
"""Folder of machine code beside the folder `checkers` on a node of a cluster."""

_ROOT = Path(__file__).resolve().parents[2]
_IMPORTED = re.compile(
    r"^[ \t]*(?:from[ \t]+(checkers[\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^\n]*)|import[ \t]+(checkers[\w.]*))",
    re.MULTILINE,
)
_compiling = threading.RLock()


def compiled(kernel: Kernel) -> Callable[..., Any]:
    """Return the kernel for the compiler, which compiles it at its first call with arguments of each type.

    Machine code is cached only if the source is a file.
    """
    with _compiling:
        dispatcher: Callable[..., Any] = _COPIES.of(kernel)
        return dispatcher


def _for_compiler(kernel: Kernel, function: FunctionType) -> Any:
    if kernel.instruction:
        return _INSTRUCTIONS[kernel.instruction]
    dispatcher = numba.njit(nogil=True, no_cfunc_wrapper=True, **kernel.options)(function)
    if _is_file(function.__code__.co_filename):
        dispatcher._cache = _KeptCode(function)
    return dispatcher


@functools.cache
def _is_file(name: str) -> bool:
    return Path(name).is_file()


def _trailing_zeros(_context: Any, word: Any) -> Any:
    def code(_: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), code


def _ones(_context: Any, word: Any) -> Any:
    def code(_: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), code


_INSTRUCTIONS = {"cttz": intrinsic(_trailing_zeros), "ctpop": intrinsic(_ones)}
_COPIES = KernelCopies(_for_compiler, lambda constant: constant)


class ByContent(InTreeCacheLocator):  # type: ignore[misc]
    """Gives the compiler the folder of machine code; the folder's name alone decides whether the code is current."""

    def ensure_cache_path(self) -> None:
        Path(self.get_cache_path()).mkdir(parents=True, exist_ok=True)

    def get_cache_path(self) -> str:
        return str(_folder_of(self._py_file))

    def get_source_stamp(self) -> str:
        return _folder_of(self._py_file).name


class _Loaded(JITCodeLibrary):  # type: ignore[misc]
    """Cached machine code that was loaded.  Its intermediate code is read only when a calling kernel is compiled."""

    _shared_module: Any

    def __init__(self, codegen: Any, kept: tuple[str, bytes, bytes, frozenset[str]]) -> None:
        name, code, self._intermediate, symbols = kept
        super().__init__(codegen, name)
        self.enable_object_caching()
        self._set_compiled_object(code)
        self._finalize_final_module()
        codegen._engine._defined_symbols |= symbols

    def _get_module_for_linking(self) -> Any:
        if self._shared_module is None:
            self._shared_module = llvm.parse_bitcode(self._intermediate)
        return self._shared_module


class _Kept(CompileResultCacheImpl):  # type: ignore[misc]
    """Store of machine code: it works like the compiler's own cache, with the names of all symbols in addition."""

    _locator_classes = (ByContent,)

    def reduce(self, compiled: Any) -> Any:
        (name, _, (code, intermediate)), *others = super().reduce(compiled)
        module = compiled.library._get_module_for_linking()
        every = (*module.functions, *module.global_variables)
        return (name, code, intermediate, frozenset(one.name for one in every if not one.is_declaration)), *others

    def rebuild(self, target_context: Any, payload: Any) -> Any:
        library = _Loaded(target_context.codegen(), payload[0])
        ready = SimpleNamespace(unserialize_library=lambda loaded: loaded)
        context = SimpleNamespace(
            codegen=lambda: ready,
            get_executable=target_context.get_executable,
            typing_context=target_context.typing_context,
        )
        return super().rebuild(context, (library, *payload[1:]))._replace(target_context=target_context)


class _KeptCode(FunctionCache):  # type: ignore[misc]
    """Cached machine code of one kernel.

    The compiler's own cache prepares the compiler before it loads anything: it imports its knowledge of Python and
    NumPy, which takes longer than loading ten kernels.  Loading needs only the runtime of machine code, and a kernel
    that must be compiled prepares the compiler itself.
    """

    _impl_class = _Kept

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        rtsys.initialize(target_context)
        found = self._load_overload(sig, target_context)
        for call in BEFORE_COMPILING if found is None else ():
            call()
        return found


def machine_code_folder(source: Path) -> Path:
    """Return the folder of machine code for the kernels of one file, for the current text of all its imports."""
    text = hashlib.sha256(f"{numba.__version__} {np.__version__} {sys.version}".encode())
    for name, file in sorted(_with_imported(source, _ROOT).items()):
        text.update(f"\n{name}\n".encode() + file.read_bytes())
    return kernels_folder() / f"{source.stem}-{text.hexdigest()[:16]}"


def kernels_folder() -> Path:
    """Return the folder of all machine code: in the cache, or beside the sources on a node of a cluster."""
    beside = _ROOT / BESIDE_SOURCES
    return beside if beside.is_dir() else cache_folder() / "kernels"


@functools.cache
def _folder_of(source: str) -> Path:
    return machine_code_folder(Path(source).resolve())


def _with_imported(source: Path, root: Path) -> dict[str, Path]:
    """Return the file and every file of `checkers` that it imports, directly or indirectly, by path below the root.

    An import may be anywhere in a file.  The path counts, because machine code of a moved file imports modules of its
    old location.
    """
    found = {str(source.relative_to(root)) if source.is_relative_to(root) else source.name: source}
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
    """Return modules of `checkers` that a source may import; a name that is no module does no harm."""
    modules = set()
    for package, names, plain in _IMPORTED.findall(text):
        modules.add(package or plain)
        modules.update(f"{package}.{name}" for name in re.findall(r"\w+", names))
    return modules - {"checkers"}
