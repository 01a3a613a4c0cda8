"""The guard of a node on a user's own host: it runs the agent, and removes everything of the run afterwards.

    python3 -m harness.agent.guard '{"folder": ..., "silence_s": ..., "stay": true, "lock": ...}'

When a container ends, everything in it is removed; a host needs a guard for that.  The guard starts the agent, which
inherits its stdin and stdout, and waits until the agent ends for any reason.  Then the guard removes the processes,
rules, mounts and files of the run.  Before it starts the agent, it removes remains of dead runs.  No other run can be
alive, because this process holds the lock of `arrival`.  With "stay" false it only removes remains of dead runs.

Only marks identify the property of a run: `MARK` in the environment of a process, a name that begins with
`TABLE_PREFIX` for rules, and the folder `<base>/<run>`.  The guard touches nothing else.

The first line on stdout is JSON: {"ready": true, "removed": [...]}.  For everything that cannot be removed, the guard
writes a line to stderr that begins with "left: ", and its exit status is 1.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from harness.agent.children import adopt_orphans, has_mark, pids, stat_of
from harness.agent.disk_verbs import mounts_below, unmount
from harness.agent.network import Table, without
from harness.agent.process import SILENCE

MARK = "KRUCIBLE_NODE"
"""Environment variable of every process of a run.  Its value is the run's folder."""
TABLE_PREFIX = "krucible_ssh_"
_KILL_S = 5.0
_NFT_S = 10.0
_PR_SET_PDEATHSIG = 1


def main(given: Mapping[str, Any]) -> int:
    """Run the guard.  Return its exit status: 0 if nothing is left, 1 if something could not be removed."""
    folder = Path(given["folder"])
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which every process of the run would inherit
    os.chdir("/")
    os.set_inheritable(int(given["lock"]), False)
    left: list[str] = []
    try:
        remains = {run.name: _remove(run) for run in _runs(folder.parent) if run != folder}
        removed = [run for run, words in remains.items() if not words]
        left += [*chain(*remains.values()), *_delete_tables()]
        with contextlib.suppress(BrokenPipeError):  # the harness has ended; the agent will notice it too
            os.write(1, json.dumps({"ready": True, "removed": removed}).encode() + b"\n")
        if given["stay"]:
            _host_agent(folder, float(given["silence_s"]))
    finally:
        left += [*_remove(folder), *_delete_tables()]
    with contextlib.suppress(BrokenPipeError):
        os.write(2, "".join(f"left: {words}\n" for words in left).encode())
    return 1 if left else 0


def _host_agent(folder: Path, silence_s: float) -> None:
    """Run the agent until it ends.  If this process is killed, the agent gets SIGTERM, kills its server and exits."""
    adopt_orphans()
    search = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    added = {MARK: str(folder), SILENCE: f"{silence_s:g}", "PATH": search, "PYTHONUNBUFFERED": "1"}
    libc = ctypes.CDLL(None)
    agent = subprocess.Popen(
        [sys.executable, "-P", "-m", "harness.agent"],
        env={**os.environ, **added},
        start_new_session=True,
        preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0),
    )
    signal.signal(signal.SIGTERM, lambda *_: agent.terminate())
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):  # the streams belong to the agent: the harness must see their end as soon as the agent ends
        os.dup2(nothing, stream)
    while agent.returncode is None:
        ended, status = os.wait()
        if ended == agent.pid:
            agent.returncode = os.waitstatus_to_exitcode(status)


# ---- removing ------------------------------------------------------------------------------------------------------


def _remove(folder: Path) -> list[str]:
    """Remove the processes, mounts and files of a run, and return a sentence for each that remains."""
    left = [f"process {pid} does not end" for pid in _kill(folder)]
    for place in reversed(mounts_below(folder)):
        try:
            unmount(place)
        except OSError as refusal:
            left.append(str(refusal.strerror or refusal))
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        left.append(f"the folder {folder} cannot be removed")
    with contextlib.suppress(OSError):  # the folder may belong to another run
        folder.parent.rmdir()
    return left


def _kill(folder: Path) -> list[int]:
    """Kill every process of a run; return the ids of those that do not end."""
    deadline = time.monotonic() + _KILL_S
    while found := [pid for pid in pids() if _belongs(pid, folder)]:
        if time.monotonic() > deadline:
            return found
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _reap()
        time.sleep(0.02)
    return []


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _belongs(pid: int, folder: Path) -> bool:
    """Return True if a process has the run's mark, or is a child of this process: an orphan of the run."""
    fields = stat_of(f"/proc/{pid}")
    if pid == os.getpid() or not fields or fields[0] in b"ZX":
        return False
    return has_mark(pid, f"{MARK}={folder}") or int(fields[1]) == os.getpid()


def _delete_tables() -> list[str]:
    """Delete the nft tables of all runs, because no other run can be active on this host.  Return one sentence for each
    table that remains.
    """
    if shutil.which("nft") is None:
        return []
    try:
        listing = subprocess.run(["nft", "list", "tables", "ip"], capture_output=True, text=True, timeout=_NFT_S)
        tables = re.findall(rf"^table ip ({TABLE_PREFIX}\w+)$", listing.stdout, flags=re.MULTILINE)
        return [words for name in tables if (words := _delete(("ip", name)))]
    except subprocess.TimeoutExpired:
        return ["nft does not answer, so rules may be left"]


def _delete(table: Table) -> str:
    done = subprocess.run(["nft", "-f", "-"], input=without(table), capture_output=True, text=True, timeout=_NFT_S)
    return f"the rules {' '.join(table)}: {done.stderr.strip()[:200]}" if done.returncode else ""


def _runs(base: Path) -> Iterator[Path]:
    """Yield the folders of runs.  Everything else in the base folder belongs to others."""
    yield from sorted(path.parent.parent for path in base.glob("*/code/harness"))


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
