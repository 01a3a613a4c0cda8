"""Several processes that form one server: they start together, and when one process ends, the others are killed.

    python -m system_under_test.own.processes_as_one_server '{"name": ["argv", ...], ...}' LOG_FOLDER

The output of each process is appended to LOG_FOLDER/<name>.log, after a mark with the process id of this program.  All
processes are in the process group of this program, so that a signal to the server reaches all of them.  The exit status
of this program is that of the process that ended first.

A fault may kill one process by its name and start it again later.  The agent and this program communicate through files
in the folder that CONTROL names: `<name>.pid` exists while the process runs, `<name>.held` while it must stay down.
SIGUSR1 announces that a `.held` file was removed.

*Lives.*  Each line of output belongs to one life (incarnation) of a server, from one start to the next.
A server appends its output to one file, across all its starts.  So each start first writes a mark with its process id.
The agent reports the same process id when the process ends, so that a line is attributed to the right end.  A server
may also write its own log files.  They contain no marks, so the life of their lines is unknown.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from checkers.base.cause_of_end import cause_of_end, is_note
from system_under_test.subject import Complaint

CONTROL = "KRUCIBLE_PROCESSES"
"""Name of the environment variable with the folder of the node through which the agent controls named processes."""


class _Processes:
    """The processes of one server.

    commands: name -> argv
    control: folder that CONTROL names; None if the agent offers none
    """

    def __init__(self, commands: dict[str, Sequence[str]], logs: Path, control: Path | None) -> None:
        self._commands = commands
        self._logs = logs
        self._control = control
        self._living: dict[int, str] = {}

    def start_those_missing(self) -> None:
        """Start every process that is not running and need not stay down."""
        for name in self._commands:
            if name not in self._living.values() and not self._held(name):
                self._start(name)

    def reap(self) -> tuple[str, int] | None:
        """Return the name and the status of the first process that ended although it need not stay down; None if there
        is none.
        """
        while self._living:
            pid, raw = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return None
            if (name := self._living.pop(pid, None)) is None:
                continue  # an orphaned descendant that this program did not start
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
        signal.signal(number, lambda *_: None)  # unlike a signal mask, a handler is not inherited by child processes
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


MARK = re.compile(r"^krucible: process (\d+) starts$", re.MULTILINE)
_ANNOUNCE = r"printf '\nkrucible: process %s starts\n' $$"
ANNOUNCED = ("sh", "-c", f'{_ANNOUNCE}; exec "$@"', "sh")
"""Words before a command: a shell that writes the mark and then becomes the server."""

NO_LIFE = -1
ENDED = re.compile(r"(?P<process>[^/]+) ended with status -?\d+; the others are killed")
"""Pattern of the last line of a server of several processes after one of them ended."""
COMPLAINTS_MAX = 20
"""Maximum number of distinct complaints kept per file and per life of a server."""
_EXCERPT_CHARACTERS, _REASON_CHARACTERS = 2000, 200
_LAST_LINES, _LAST_CHARACTERS = 3, 300
_LINE_BEGINS, _LINE_ENDS = 130, 60
"""Numbers of characters kept from the begin and the end of a line that is too long: the begin of an error message tells
what happened, the end often tells where.
"""
_VARYING = re.compile(r"0x[0-9a-fA-F]+|\d+")


@dataclass(frozen=True, slots=True)
class Life:
    """The text that one life of a server wrote to one file.

    pid: process id of this life; NO_LIFE if the file does not contain it
    """

    pid: int
    text: str


def mark(pid: int) -> str:
    return f"\nkrucible: process {pid} starts\n"


def lives(text: str) -> Iterator[Life]:
    """Yield the lives in the order of the file."""
    parts = MARK.split(text)
    if parts[0].strip():
        yield Life(NO_LIFE, parts[0])
    for pid, written in zip(parts[1::2], parts[2::2], strict=True):
        yield Life(int(pid), written)


def last_words(logs: Path, pid: int) -> str:
    """Return the last lines that one life of a server printed; "" if its output does not contain any.

    A panic or a traceback that explains the end comes first, even if other lines followed.  If one of several processes
    ended first, the lines of that process come before the line that names it.

    logs: folder of the node's logs
    """
    lines = last_lines(_printed(logs / "server.log", pid))
    if lines and (ended := ENDED.fullmatch(lines[-1])):
        lines = [*last_lines(_printed(logs / f"{ended['process']}.log", pid)), lines[-1]]
        return "\n".join(lines)
    return "\n".join(lines)[-_LAST_CHARACTERS:]


def last_lines(printed: Sequence[str]) -> list[str]:
    """Return the lines that explain why a program ended, or else its last lines, without hints on how to see more."""
    said = [line for line in printed if line.strip() and not is_note(line)]
    cause = [_without_middle(line) for line in cause_of_end(printed)]
    rest = [_without_middle(line.strip()) for line in said][-_LAST_LINES:]
    return cause or rest


def _without_middle(line: str) -> str:
    if len(line) <= _LINE_BEGINS + _LINE_ENDS:
        return line
    return f"{line[:_LINE_BEGINS]} ... {line[-_LINE_ENDS:]}"


def _printed(log: Path, pid: int) -> list[str]:
    """Return the lines of one life; [] if there are none or the log cannot be read."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    lines = (line for life in lives(text) if life.pid == pid for line in life.text.splitlines())
    printable = ("".join(c for c in line if c.isprintable()) for line in lines)
    return [line for line in printable if line.strip()]


def complaints_of(node: str, text: str, pattern: re.Pattern[str]) -> Iterator[Complaint]:
    """Yield the distinct complaints of each life in one file: at most COMPLAINTS_MAX, and then the number of further
    ones.

    Complaints that differ only in numbers, such as times, count as one.  `facts` of a complaint contains the `pid` of
    the life, and `lines_before_end`, the number of lines that this life wrote after the complaint.  Indented lines do
    not count, because most of them belong to a stack trace.
    """
    for life in lives(text):
        seen: set[str] = set()
        most_lines_before_end = 0
        for match in pattern.finditer(life.text):
            kind = _VARYING.sub("#", match.group())
            if kind in seen:
                continue
            seen.add(kind)
            facts = {"pid": life.pid, "lines_before_end": _lines(life.text[match.end() :])}
            if len(seen) <= COMPLAINTS_MAX:
                excerpt = life.text[match.start() : match.start() + _EXCERPT_CHARACTERS]
                yield Complaint(node, match.group()[:_REASON_CHARACTERS], excerpt, facts)
            else:
                most_lines_before_end = max(most_lines_before_end, facts["lines_before_end"])
        if (more := len(seen) - COMPLAINTS_MAX) > 0:
            facts = {"pid": life.pid, "lines_before_end": most_lines_before_end}
            yield Complaint(node, f"{more} more different lines match `complaints`", facts=facts)


def _lines(text: str) -> int:
    return sum(bool(line.strip()) and not line[0].isspace() for line in text.splitlines()[1:])


if __name__ == "__main__":
    main()
