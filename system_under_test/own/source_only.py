"""Running a user's Python files from their source alone, never from what Python compiled earlier.

Python runs the code in `__pycache__` if size and time of the source fit, and it does not compare the code with the
source.  The files of a run are bound by their hashes, but such compiled code is not: it could judge a run by other
rules than those that are kept.  So neither the file itself nor what it imports from its own folder is taken from there.

Needs only the standard library, because client nodes read these files too.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, ExtensionFileLoader, FileFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

_folders: set[str] = set()


class _SourceLoader(SourceFileLoader):
    """Compiles the source each time, and leaves nothing behind."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


def module_of(name: str, path: Path) -> ModuleType:
    """A module that has not run yet; `run` runs it."""
    spec = importlib.util.spec_from_file_location(name, path, loader=_SourceLoader(name, str(path)))
    assert spec is not None
    return importlib.util.module_from_spec(spec)


def run(module: ModuleType) -> None:
    """Run a module of `module_of`.  Raises what its code raises, and SyntaxError."""
    assert module.__spec__ is not None and module.__spec__.loader is not None
    module.__spec__.loader.exec_module(module)


def import_from_source(folder: Path) -> None:
    """From now on, compile what is imported from this folder or one below it from its source.

    folder: an absolute path, as it stands in `sys.path`."""
    root = str(folder)
    if root in _folders:
        return
    _folders.add(root)

    def finder(path: str) -> FileFinder:
        if path != root and not path.startswith(root + os.sep):
            raise ImportError(f"{path} is not below {root}")
        return FileFinder(path, (_SourceLoader, SOURCE_SUFFIXES), (ExtensionFileLoader, EXTENSION_SUFFIXES))

    sys.path_hooks.insert(0, finder)
    for path in [path for path in sys.path_importer_cache if path == root or path.startswith(root + os.sep)]:
        del sys.path_importer_cache[path]
