"""A cache of a test's own, without compiling kernels anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkers.base.cache_folder import cache_folder


def use_own_cache(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Begin with an empty cache in this folder, which shares the machine code of kernels.

    Compiling it takes minutes.  A process remembers where the code of a kernel is kept, so a test that changed that
    would make later ones compile, too.
    """
    (kernels := cache_folder() / "kernels").mkdir(exist_ok=True)
    (folder / "krucible").mkdir(parents=True)
    (folder / "krucible" / "kernels").symlink_to(kernels.resolve())
    patch.setenv("XDG_CACHE_HOME", str(folder))
