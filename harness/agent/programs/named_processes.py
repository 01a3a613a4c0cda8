"""The named processes of one server, and faults on one of them.

Theory.  A system names its processes (`System.processes`): some are started under their names, by
`system_under_test.own.processes_as_one_server`; others are known by a pattern of their command line.  Each process of
the server belongs to the nearest named one above it, or to none.  So the fault on an agent leaves the database alone
that the agent has started, if both have names; and it meets the helpers of the agent, which have none.

A process that was started under its name stays down after its end while `<name>.held` exists, and is started again
after `release`.  One that is known by a pattern is started again by its own parent, whenever that one likes.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.agent.programs.children import is_stopped, wait_until
from harness.agent.programs.process_tree import ProcessTree, let_vforks_end, send, started_at


@dataclass(frozen=True, slots=True)
class ProcessNames:
    """patterns: name -> a regular expression of its command line, "" for one that was started under its name."""

    patterns: Mapping[str, str]

    def __post_init__(self) -> None:
        for pattern in self.patterns.values():
            re.compile(pattern)


class NamedProcesses:
    """Of one server at a time.  leader: the process that the agent started; it is never part of a named one."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._ended: dict[str, set[tuple[int, int]]] = {}

    def use(self, folder: str) -> None:
        """A new server is started that shares this folder with the agent, "" for none; what lay there is removed."""
        self._ended, self._folder = {}, Path(folder) if folder else None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir(parents=True)

    def state(self, name: str, names: ProcessNames, tree: ProcessTree, leader: int) -> dict[str, bool]:
        """lives, stopped (all of it), held (it stays down until `release`), ended (all that the last order ended)."""
        if self._folder is None:
            return dict.fromkeys(("lives", "stopped", "held", "ended"), False)
        members = self._part(name, names, tree, leader)
        return {
            "lives": bool(members),
            "stopped": bool(members) and all(map(is_stopped, members)),
            "held": self._held(name).exists(),
            "ended": self._has_ended(name),
        }

    def signal(self, name: str, number: int, names: ProcessNames, tree: ProcessTree, leader: int) -> None:
        """STOP, CONT, KILL or TERM; returns when it is obeyed, but for TERM: `state` shows when that one is.

        Raises OSError: ESRCH if there is no such process, ETIMEDOUT if it does not obey in time."""
        members = self._part(name, names, tree, leader)
        if number == signal.SIGCONT:
            send(members, number)
            self._await(lambda: not any(map(is_stopped, self._part(name, names, tree, leader))), name, "go on")
            return
        if not members:
            raise OSError(errno.ESRCH, f"no process {name!r} lives here")
        if number == signal.SIGSTOP:
            self._stop_all(name, names, tree, leader)
            return
        if not names.patterns[name]:
            self._held(name).touch()
        self._ended[name] = _identities(members)
        if number == signal.SIGKILL:
            members = self._stop_all(name, names, tree, leader)
            self._ended[name] = _identities(members)
            send(members, signal.SIGKILL)
            self._await(lambda: self._has_ended(name), name, "end")
        else:
            send(_topmost(members, tree), number)

    def release(self, name: str, names: ProcessNames, tree: ProcessTree, leader: int) -> None:
        """Let the process go on, and start it again where it was held down.  Raises OSError if it does not start."""
        if self._folder is None or name not in names.patterns:
            return
        self.signal(name, signal.SIGCONT, names, tree, leader)
        if not self._held(name).exists():
            return
        if self._part(name, names, tree, leader):  # it was ordered to end and has not
            self.signal(name, signal.SIGKILL, names, tree, leader)
        self._held(name).unlink()
        os.kill(leader, signal.SIGUSR1)
        self._await(lambda: self._pid(name) is not None, name, "start again")

    def _has_ended(self, name: str) -> bool:
        """Whether all that the last order ended has ended, and the process that started it knows."""
        last = self._ended.get(name, set())
        return bool(last) and self._pid(name) is None and all(started_at(pid) != started for pid, started in last)

    def _stop_all(self, name: str, names: ProcessNames, tree: ProcessTree, leader: int) -> set[int]:
        """Stop every process of the part, also those that appear meanwhile, and return them."""
        members: set[int] = set()

        def settled() -> bool:
            """Whether all were stopped at two looks in a row.  Sends SIGSTOP again to those that are not."""
            nonlocal members
            before, members = members, self._part(name, names, tree, leader)
            running = {pid for pid in members if not is_stopped(pid)}
            send(running, signal.SIGSTOP)
            let_vforks_end(running, members - running)
            return not running and members == before

        self._await(settled, name, "stop")
        return members

    def _part(self, name: str, names: ProcessNames, tree: ProcessTree, leader: int) -> set[int]:
        parents = tree.parents()
        owners = {pid: owner for pid in parents if pid != leader if (owner := _matching(pid, names))}
        for each in names.patterns:
            if (pid := self._pid(each)) is not None and pid in parents:
                owners[pid] = each
        return {pid for pid in parents if pid != leader and _owner(pid, parents, owners) == name}

    def _pid(self, name: str) -> int | None:
        """Of a process that was started under its name."""
        try:
            return int(self._path_of(f"{name}.pid").read_text())
        except (FileNotFoundError, ValueError):
            return None

    def _held(self, name: str) -> Path:
        return self._path_of(f"{name}.held")

    def _path_of(self, file: str) -> Path:
        if self._folder is None:
            raise FileNotFoundError(errno.ESRCH, "no server was started here")
        return self._folder / file

    @staticmethod
    def _await(condition: Callable[[], bool], name: str, what: str) -> None:
        if not wait_until(condition):
            raise OSError(errno.ETIMEDOUT, f"the process {name} does not {what}")


def _matching(pid: int, names: ProcessNames) -> str:
    """The name of the first pattern that the command line of a process matches, "" if none does."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""
    return next((name for name, pattern in names.patterns.items() if pattern and re.search(pattern, line)), "")


def _owner(pid: int, parents: Mapping[int, int], owners: Mapping[int, str]) -> str:
    seen: set[int] = set()
    while pid in parents and pid not in seen:
        if pid in owners:
            return owners[pid]
        seen.add(pid)
        pid = parents[pid]
    return ""


def _topmost(members: Iterable[int], tree: ProcessTree) -> set[int]:
    parents, members = tree.parents(), set(members)
    return {pid for pid in members if parents.get(pid) not in members}


def _identities(pids: Iterable[int]) -> set[tuple[int, int]]:
    return {(pid, started) for pid in pids if (started := started_at(pid)) is not None}
