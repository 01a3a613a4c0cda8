"""Things of others on this machine, which no clean-up may touch: rules, a network, a loop device, FUSE, a process.

Their names resemble those of runs where possible: a clean-up that goes by name alone would remove them.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from harness.agent.disk.verbs import Mounted

_LOOP_BYTES = 1 << 20


@contextmanager
def decoys(folder: Path, *, docker: bool) -> Iterator[Mapping[str, list[str]]]:
    """Name -> a command that succeeds as long as the thing is there.  Everything is removed at the end.

    docker: also a network, a volume and a container without labels of ours.  What this machine cannot make is left out.
    """
    checks: dict[str, list[str]] = {}
    with ExitStack() as stack:
        _rules(stack, checks)
        _loop_device(stack, checks, folder)
        _fuse(stack, checks, folder)
        process = subprocess.Popen(["sleep", "86399"])
        stack.callback(process.wait)
        stack.callback(process.kill)
        checks["a process"] = ["grep", "-q", "sleep", f"/proc/{process.pid}/cmdline"]
        kept = folder / "krucible-nodes-of-another"
        kept.mkdir()
        checks["a folder without an owner"] = ["test", "-d", str(kept)]
        if docker:
            _in_the_engine(stack, checks)
        yield checks


def missing(checks: Mapping[str, list[str]]) -> list[str]:
    """The decoys that are gone."""
    return [name for name, argv in checks.items() if not _succeeds(argv)]


def _rules(stack: ExitStack, checks: dict[str, list[str]]) -> None:
    for family in ("bridge", "ip"):
        table = [family, f"krucible_of_another_{os.getpid()}"]
        text = f"add table {' '.join(table)}\nadd chain {' '.join(table)} kept"
        if _succeeds(["nft", text]):
            stack.callback(_succeeds, ["nft", "delete", "table", *table])
            checks[f"{family} rules"] = ["nft", "list", "chain", *table, "kept"]


def _loop_device(stack: ExitStack, checks: dict[str, list[str]], folder: Path) -> None:
    image = folder / "loop.img"
    image.write_bytes(bytes(_LOOP_BYTES))
    made = subprocess.run(["losetup", "--find", "--show", str(image)], capture_output=True, text=True, check=False)
    if made.returncode == 0:
        device = made.stdout.strip()
        stack.callback(_succeeds, ["losetup", "--detach", device])
        checks["a loop device"] = ["grep", "-q", image.name, f"/sys/block/{Path(device).name}/loop/backing_file"]


def _fuse(stack: ExitStack, checks: dict[str, list[str]], folder: Path) -> None:
    shown, kept = folder / "shown", folder / "kept"
    for place in (shown, kept):
        place.mkdir()
    disk = Mounted(shown, kept)
    with contextlib.suppress(OSError):  # no FUSE here, so no run can harm a mount of others either
        disk.mount()
        stack.callback(disk.unmount)
        (shown / "file").write_text("of another")
        checks["a FUSE mount"] = ["grep", "-q", "another", str(shown / "file")]


def _in_the_engine(stack: ExitStack, checks: dict[str, list[str]]) -> None:
    name = f"krucible-of-another-{os.getpid()}"
    image = subprocess.run(
        ["docker", "images", "--quiet", "--filter", "label=krucible.image=node"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    made = {
        "a network": ["docker", "network", "create", "--internal", name],
        "a volume": ["docker", "volume", "create", name],
        "a container": ["docker", "run", "--detach", "--name", name, *image[:1], "sleep", "86398"],
    }
    for thing, argv in made.items():
        kind = argv[1] if argv[1] in ("network", "volume") else "container"
        if not _succeeds(argv):
            print(f"{thing} of another could not be made", file=sys.stderr)
            continue
        force = ["--force"] if kind != "network" else []
        stack.callback(_succeeds, ["docker", kind, "rm", *force, name])
        checks[thing] = ["docker", kind, "inspect", name]


def _succeeds(argv: list[str]) -> bool:
    return subprocess.run(argv, capture_output=True, check=False, timeout=120).returncode == 0
