"""The daemon behind one mounted folder.

    python -m harness.agent.disk MOUNT_POINT ROOT

Orders come as JSON lines on stdin, and answers go out as JSON lines on stdout, one for each, in order.  An order is a
method of `FileSystem` with its arguments:

    {"order": "behave", "rules": [...], "seed": 1}          {"to": "behave", "answer": null}
    {"order": "arm", "operation": "fsync", "nth": 3}        {"to": "arm", "answer": null}
    {"order": "think"}                                      {"to": "think", "refused": "..."}

`{"to": "mount", "answer": null}` comes first.  After a loss, and when stdin ends, the daemon ends; the folder is then
unmounted.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mfusepy

from harness.agent.disk.changes import Changes
from harness.agent.disk.file_system import FileSystem
from harness.agent.disk.verbs import unmount


class _Mounted(FileSystem):
    def init(self, path: str) -> None:
        _say({"to": "mount", "answer": None})


def main() -> None:
    mount_point, root = (Path(argument) for argument in sys.argv[1:3])
    os.umask(0)  # the kernel has applied the umask of the process that makes a file
    with tempfile.TemporaryDirectory(prefix=".krucible-aside-", dir=root.parent) as aside:
        system = _Mounted(root, Changes(Path(aside)))
        threading.Thread(target=_serve, args=(system, mount_point), daemon=True).start()
        options = {"foreground": True, "fsname": "krucible", "default_permissions": True, "allow_other": True}
        mfusepy.FUSE(system, str(mount_point), **options)


def _serve(system: FileSystem, mount_point: Path) -> None:
    """Carry orders out until stdin ends or the power is lost, then end the process."""
    try:
        for line in sys.stdin:
            order: dict[str, Any] = json.loads(line)
            name = order.pop("order")
            try:
                _say({"to": name, "answer": getattr(system, name)(**order)})
            except (OSError, ValueError, AttributeError, TypeError) as problem:
                _say({"to": name, "refused": f"{type(problem).__name__}: {problem}"})
            else:
                if name == "lose":
                    break
    finally:
        unmount(mount_point)
        os._exit(0)


def _say(words: Mapping[str, Any]) -> None:
    print(json.dumps(words), flush=True)


if __name__ == "__main__":
    main()
