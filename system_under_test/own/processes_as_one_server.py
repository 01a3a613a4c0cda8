"""Several processes that make up one server: they start together, and the end of one is the end of all.

    python -m system_under_test.own.processes_as_one_server '{"name": ["argv", ...], ...}' LOG_FOLDER

Output of each goes to LOG_FOLDER/<name>.log, behind a mark with the id of this program (`lives_in_logs.py`).
All are in the process group of this program, so that a signal to the server meets all of them; the exit status is that
of the process that ended first.

A fault may end one process by its name and start it again later.  The agent and this program agree on it through files
in the folder that CONTROL names: `<name>.pid` while the process lives, `<name>.held` while it must stay down.  SIGUSR1
announces that a hold was taken back.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from system_under_test.own.lives_in_logs import mark

CONTROL = "KRUCIBLE_PROCESSES"
"""Environment variable: the folder of the node that tells which process has which name."""


class _Processes:
    """commands: name -> argv.  control: None where the agent offers no folder."""

    def __init__(self, commands: dict[str, Sequence[str]], logs: Path, control: Path | None) -> None:
        self._commands = commands
        self._logs = logs
        self._control = control
        self._living: dict[int, str] = {}

    def start_those_missing(self) -> None:
        """Start every process that does not live and is not held down."""
        for name in self._commands:
            if name not in self._living.values() and not self._held(name):
                self._start(name)

    def reap(self) -> tuple[str, int] | None:
        """The first process that ended without being held down, with its status; None if there is none."""
        while self._living:
            pid, raw = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return None
            if (name := self._living.pop(pid, None)) is None:
                continue  # a descendant that this program inherited
            if not self._held(name):
                return name, os.waitstatus_to_exitcode(raw)
            self._path_of(name, "pid").unlink(missing_ok=True)
        return None

    def kill(self) -> None:
        for pid in self._living:
            os.kill(pid, signal.SIGKILL)

    def _start(self, name: str) -> None:
        with (self._logs / f"{name}.log").open("ab") as log:
            log.write(mark(os.getpid()).encode())
            log.flush()
            pid = subprocess.Popen(self._commands[name], stdin=subprocess.DEVNULL, stdout=log, stderr=log).pid
        self._living[pid] = name
        if self._control is not None:
            beside = self._path_of(name, "new")
            beside.write_text(str(pid))
            beside.replace(self._path_of(name, "pid"))

    def _held(self, name: str) -> bool:
        return self._control is not None and self._path_of(name, "held").exists()

    def _path_of(self, name: str, suffix: str) -> Path:
        assert self._control is not None
        return self._control / f"{name}.{suffix}"


def main() -> None:
    woken, waker = socket.socketpair()
    waker.setblocking(False)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGUSR1):
        signal.signal(number, lambda *_: None)  # a handler, unlike a mask, is not inherited by what is started here
    print(mark(os.getpid()), end="", flush=True)
    control = os.environ.get(CONTROL)
    processes = _Processes(json.loads(sys.argv[1]), Path(sys.argv[2]), Path(control) if control else None)
    processes.start_those_missing()
    while (ended := processes.reap()) is None:
        woken.recv(1024)
        processes.start_those_missing()
    name, status = ended
    print(f"{name} ended with status {status}; the others are killed", flush=True)
    processes.kill()
    sys.exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    main()
