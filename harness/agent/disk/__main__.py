"""The daemon behind one mounted folder.

    python -m harness.agent.disk MOUNT_POINT ROOT

Orders come as JSON lines on stdin, answers go out as JSON lines on stdout, one each, in order.

    {"order": "behave", "rules": [...], "seed": 1}          {"done": "behave"}
    {"order": "arm", "operation": "fsync", "nth": 3}        {"done": "arm"}, and later {"event": "reached"}
    {"order": "arm", "operation": "fsync", "nth": 0}        {"done": "arm"}: disarmed, and what was held takes place
    {"order": "pending"}                                    {"done": "pending", "changes": 7}
    {"order": "written"}                                    {"done": "written", "by_server": true}
    {"order": "lose", "kept": "tear", "seed": 1}            {"done": "lose", "undone": 7, "redone": 1, "torn_bytes": 3}

`{"event": "mounted"}` comes first.  After a loss, and when stdin ends, the daemon ends; the folder is then unmounted.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import mfusepy

from harness.agent.disk.changes import KEPT, OPERATIONS, Changes, Rule
from harness.agent.disk.file_system import Armed, FileSystem
from harness.agent.disk.verbs import unmount


class _Mounted(FileSystem):
    def init(self, path: str) -> None:
        _say({"event": "mounted"})


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
            try:
                answer = _carry_out(system, order)
            except (OSError, ValueError, KeyError, TypeError) as problem:
                answer = {"refused": f"{type(problem).__name__}: {problem}"}
            _say({"done": order.get("order"), **answer})
            if order.get("order") == "lose" and "refused" not in answer:
                break
    finally:
        unmount(mount_point)
        os._exit(0)


def _carry_out(system: FileSystem, order: Mapping[str, Any]) -> dict[str, Any]:
    """Raises ValueError for an order that makes no sense."""
    match order.get("order"):
        case "behave":
            system.behaviour.order([Rule.from_json(rule) for rule in order["rules"]], int(order["seed"]))
            return {}
        case "arm":
            if order["operation"] not in OPERATIONS or int(order["nth"]) < 0:
                raise ValueError(f"arm needs an operation of {', '.join(OPERATIONS)} and a number from 0")
            before, nth = system.armed, int(order["nth"])
            system.armed = Armed(order["operation"], nth, lambda: _say({"event": "reached"})) if nth else None
            if before is not None:
                before.disarm()
            return {}
        case "pending":
            return {"changes": system.pending()}
        case "written":
            return {"by_server": system.writers.server_wrote}
        case "lose":
            if order["kept"] not in KEPT:
                raise ValueError(f"kept must be one of {', '.join(KEPT)}")
            return asdict(system.lose(order["kept"], Random(order["seed"])))
    raise ValueError(f"there is no order {order.get('order')!r}")


_saying = threading.Lock()


def _say(words: Mapping[str, Any]) -> None:
    with _saying:
        sys.stdout.write(json.dumps(words) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
