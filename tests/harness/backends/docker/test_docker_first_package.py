"""The node image can be built before anything but the `docker` package is installed."""

from __future__ import annotations

import json
import subprocess
import sys

OTHER_PACKAGES = ("numpy", "numba", "pyarrow", "pyspark", "rich", "click", "jinja2", "kio", "networkx", "matplotlib")


def test_building_the_image_imports_no_package_but_docker() -> None:
    program = "import json, sys, harness.backends.docker_image; print(json.dumps(sorted(sys.modules)))"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    imported = set(json.loads(printed))
    assert "docker" in imported
    assert not imported & set(OTHER_PACKAGES)
