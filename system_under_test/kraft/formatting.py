"""Makes a data directory fit for a first start; apart from `process`, so that it loads nothing it does not need."""

from __future__ import annotations

import shutil

from system_under_test.kraft.config import Config
from system_under_test.kraft.disk import RealDisk
from system_under_test.kraft.log import meta_properties
from system_under_test.kraft.trace import FILE_NAME


def format_directory(config: Config) -> None:
    """Make the data directory empty but for meta.properties, and forget an earlier trace.  Raises OSError."""
    config.data_dir.mkdir(parents=True, exist_ok=True)
    for path in config.data_dir.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    (config.trace_dir / FILE_NAME).unlink(missing_ok=True)
    meta_properties.write(RealDisk(config.data_dir), config.properties)
