"""A system of one's own as a subject: the defaults, and the seam between what its author wrote and the harness."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import os
import re
from collections.abc import Awaitable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from checkers.record.files import regular
from system_under_test.functions import FUNCTIONS
from system_under_test.own.check_own_system import check_declared, check_defined_once
from system_under_test.own.client import Client
from system_under_test.own.linked_files import link_or_copy
from system_under_test.own.lives_in_logs import (
    ANNOUNCED,
    ENDED,
    MARK,
    NO_LIFE,
    complaints_of,
    last_lines,
    last_words,
)
from system_under_test.own.mistakes_in_code import mistake_in
from system_under_test.own.processes_as_one_server import CONTROL
from system_under_test.own.read_own_system import (
    BrokenSystem,
    CodeMistake,
    blamed,
    client_in,
    files_of,
    in_words,
    raised_in,
    read_files,
    system_in,
)
from system_under_test.own.swallowed_exceptions import swallowed
from system_under_test.own.system import Command, OwnNode, System, named_processes, wrong_commands
from system_under_test.subject import (
    Complaint,
    Declares,
    LookedAt,
    Needs,
    Node,
    NodeStatus,
    NotKnown,
    Subject,
)

_LOG = logging.getLogger("krucible")
FOLDER = "subject"
"""Of a run folder: where the files of the system are kept."""
_MAIN = "main.json"
_COMMAND_S = 10.0
_LAST_CHARACTERS = 300
NO_LEADER = "status: epoch, no leader"
"""What recovery may have looked at.  A server that is out of its cluster can say this much, so it proves nothing."""


class OwnSubject(Subject):
    """main: the file that defines the System.  which: the name of its class, "" for the first.  Raises NoSystem."""

    client_module = "system_under_test.own.client_processes"
    keeps_to_one_server = True

    def __init__(self, main: Path, which: str = "") -> None:
        module = read_files(main)
        self.main = main
        self.module = module
        self.system: System = system_in(module, main.name, which)
        self.which = which
        self.name = main.stem if main.name != "system.py" else main.resolve().parent.name
        self.summary = inspect.cleandoc(type(self.system).__doc__ or module.__doc__ or self.name).splitlines()[0]
        self.files = files_of(main)
        check_defined_once(main, self.files[main.name])
        self.port = self.system.port
        self.needs: Needs = self.system.needs
        self.notices_damage: Mapping[str, str] = self.system.notices_damage
        self._client = client_in(module, main.name, self.system)
        check_declared(self.system, self._client, main, kept=_is_kept(main))
        self.processes: Mapping[str, str] = named_processes(self.system.processes)
        self.functions = _functions(self._client)
        leads = type(self.system).status is not System.status
        elections = self.system.elections
        self.declares = Declares(
            elections=leads if elections is None else elections,
            leaders=leads,
            failover_s=float(self.system.failover_s),
            unavailable_s=float(self.system.unavailable_s),
            each_server_serves=self._client.leader is Client.leader,
        )
        self._nodes: dict[str, OwnNode] = {}
        self._warned: set[str] = set()
        self._doubts: list[str] = []
        self.programs: Mapping[str, Path] = {}
        """Path on the node -> program, of each crate that the system needs; the harness builds them."""
        self._looked_at: dict[str, list[str]] = {}
        """Node -> what the last `caught_up` looked at besides the state of the process."""

    @property
    def doubts(self) -> Sequence[str]:
        return self._doubts

    async def install(self, nodes: Sequence[Node], *, seed: int, bug: str | None) -> None:
        self._nodes = {node.name: OwnNode(node, index) for index, node in enumerate(nodes)}
        self._doubts = list(swallowed(self.files, self._client.__name__))
        for words in self._doubts:
            self._warn_once(words)
        await asyncio.gather(*map(self._install, self._nodes.values()))

    async def start(self, node: Node) -> None:
        own = self._nodes[node.name]
        try:
            commands = await self.system.start(own, list(self._nodes.values()))
        except Exception as problem:
            own_files = [self.main.parent / name for name in self.files]
            if isinstance(problem, OSError) and not raised_in(own_files, problem):
                raise  # the node refused: a fault may be the reason
            raise BrokenSystem(blamed(self.main, "start", problem)) from problem
        if wrong := wrong_commands(commands) or self._unnamed(commands):
            raise BrokenSystem(f"{self.main.name}: start returned {wrong}")
        own.starts += 1
        if isinstance(commands, Mapping):
            named = json.dumps({name: self._as_user(own.words(command)) for name, command in commands.items()})
            together = [*node.python, "-m", "system_under_test.own.processes_as_one_server", named, node.log_dir]
            await node.start(
                together, env={CONTROL: f"{node.trace_dir}/processes"}, output=f"{node.log_dir}/server.log"
            )
        else:
            words = [*ANNOUNCED, *self._as_user(own.words(commands))]
            await node.start(words, output=f"{node.log_dir}/server.log")

    def _unnamed(self, commands: Command | Mapping[str, Command]) -> str:
        """Why these commands lack a process that the system names; "" if they lack none."""
        started = set(commands) if isinstance(commands, Mapping) else set()
        missing = [name for name, pattern in self.processes.items() if not pattern and name not in started]
        if not missing:
            return ""
        there = f"the commands of {', '.join(sorted(started))}" if started else "one command without a name"
        return f"{there}, and `processes` names {missing[0]}: return {{{missing[0]!r}: command, …}}"

    async def status(self, node: Node) -> NodeStatus | None:
        own = self._nodes.get(node.name)
        if own is None or await node.state() != "running":
            return None
        try:
            status = await self.system.status(own)
        except Exception as problem:  # noqa: BLE001 - a server in trouble gives answers that its author did not expect
            self._end_of_mistake("status", problem)
            self._warn_once(blamed(self.main, "status", problem))
            return None
        if wrong := self._wrong_status(status):
            self._warn_once(f"{self.main.name}: status returned {wrong}; it is taken for no status")
            return None
        return status

    def _end_of_mistake(self, method: str, problem: BaseException) -> None:
        """Raises CodeMistake where the author's own code is wrong."""
        if mistake := mistake_in(self.main.parent, problem):
            raise CodeMistake(f"{mistake} (in {method})") from problem

    def _wrong_status(self, status: object) -> str:
        """Why this is no status, "" if it is one.  None is one: the node says nothing."""
        if status is None:
            return ""
        if not isinstance(status, NodeStatus):
            return f"{status!r:.60}, where node.reports(epoch, leader) or None is expected"
        if not isinstance(status.epoch, int) or isinstance(status.epoch, bool) or status.epoch < 0:
            return f"the epoch {status.epoch!r:.60}, which is no whole number"
        if status.leader is not None and status.leader not in self._nodes:
            named = [own.name for own in self._nodes.values() if own.address in str(status.leader)]
            hint = f" (it is the address of {named[0]})" if named else ""
            return f"the leader {status.leader!r:.60}, which is no node's name: {', '.join(self._nodes)}, or None{hint}"
        return ""

    def _warn_once(self, words: str) -> None:
        if words not in self._warned:
            self._warned.add(words)
            _LOG.warning("%s", words)

    async def ready(self, nodes: Sequence[Node]) -> str | None:
        for node in nodes:
            if (state := await node.state()) != "running":
                return f"the server of {node.name} is {state}{await self._last_words(node)}"
        try:
            missing = await self.system.ready(list(self._nodes.values()))
        except Exception as problem:  # noqa: BLE001 - as in status: it may be the server that is not ready
            self._end_of_mistake("ready", problem)
            return blamed(self.main, "ready", problem)
        return self._words(missing, "ready") or await self._without_status()

    async def _without_status(self) -> str | None:
        """None where every node of a ready system has a status.  Raises BrokenSystem for one of the wrong form."""
        for own in self._nodes.values() if self.declares.leaders else ():
            try:
                status = await self.system.status(own)
            except Exception as problem:  # noqa: BLE001 - as in status
                self._end_of_mistake("status", problem)
                return blamed(self.main, "status", problem)
            if wrong := self._wrong_status(status):
                raise BrokenSystem(f"{self.main.name}: status returned {wrong}")
        return None

    async def _last_words(self, node: Node) -> str:
        """What a server printed last: most often it says why the server ended."""
        name, lines = "server.log", await _lines(node, "server.log")
        if lines and (ended := ENDED.fullmatch(lines[-1])):  # one of several processes, which has a log of its own
            name = f"{ended['process']}.log"
            lines = [*await _lines(node, name), lines[-1]]
        if not lines:
            return "; it printed nothing: a command must keep the server in the foreground"
        return f"; its {name} ends: {' | '.join(last_lines(lines))[-_LAST_CHARACTERS:]}"

    def _words(self, missing: object, method: str) -> str | None:
        """What a method says is missing.  Raises BrokenSystem where that is neither words nor None."""
        if missing is None or (isinstance(missing, str) and missing):
            return missing
        words = "None or what is missing, in words, is expected"
        raise BrokenSystem(f"{self.main.name}: {method} returned {missing!r:.60}, where {words}")

    async def caught_up(self, nodes: Sequence[Node], key_count: int) -> str | None:
        states = await asyncio.gather(*(node.state() for node in nodes))
        stopped = [node.name for node, state in zip(nodes, states, strict=True) if state == "stopped"]
        if stopped:
            return f"{', '.join(stopped)}: stopped"
        live = [self._nodes[n.name] for n, state in zip(nodes, states, strict=True) if state == "running"]
        if not live:
            return "no server is alive"
        self._looked_at = {own.name: [] for own in live}
        if not self._has("caught_up"):
            return await self._caught_up_by_default(live, all_live=len(live) == len(nodes))
        missing = self._words(await self._answer("caught_up", self.system.caught_up(live)), "caught_up")
        self._looked("caught_up()", live)
        return missing

    async def _caught_up_by_default(self, live: Sequence[OwnNode], *, all_live: bool) -> str | None:
        """What `status` and `ready` show, where the system has them.  Raises NotKnown for what they do not settle."""
        if self._has("status"):
            statuses = {own.name: await self._answer("status", self.system.status(own)) for own in live}
            for name, status in statuses.items():
                if status is None:
                    problem = self._nodes[name].problem
                    return f"{name} gives no status{f' ({problem})' if problem else ''}"
                if wrong := self._wrong_status(status):
                    raise BrokenSystem(f"{self.main.name}: status returned {wrong}")
            _check_one_leader(statuses)
            for own in live:
                named = _leader_named(own.name, statuses[own.name])
                self._looked("status: epoch and leader" if named else NO_LEADER, [own])
        if self._has("ready") and all_live:  # it may demand all servers, so it is not called where one is dead
            missing = self._words(await self._answer("ready", self.system.ready(live)), "ready")
            if missing:  # it may say what only a first start has, so this is no violation
                raise NotKnown(f"after the heal `ready` says: {missing} (a `caught_up` would decide)")
            self._looked("ready()", live)
        return None

    def _has(self, method: str) -> bool:
        """Whether the author wrote this method."""
        return getattr(type(self.system), method) is not getattr(System, method)

    def _looked(self, words: str, at: Sequence[OwnNode]) -> None:
        for own in at:
            self._looked_at[own.name].append(words)

    async def _answer(self, method: str, called: Awaitable[Any]) -> Any:
        """What a method of the author returns.  Raises BrokenSystem for what it raises."""
        try:
            return await called
        except Exception as problem:
            self._end_of_mistake(method, problem)
            raise BrokenSystem(blamed(self.main, method, problem)) from problem

    def client_config(self, *, seed: int, bug: str | None) -> dict[str, Any]:
        return {"files": self.files, "main": self.main.name, "client": self._client.__name__}

    async def collect(self, node: Node, folder: Path) -> None:
        await node.copy_out(node.log_dir, folder)

    def complaints(self, run_folder: Path) -> Sequence[Complaint]:
        """The complaints of each life of a server, as `complaints_of` gives them."""
        unplaced = {"pid": NO_LIFE, "lines_before_end": 0}
        own = self.system.complaints_in(run_folder / "nodes")
        found = [replace(complaint, facts={**unplaced, **complaint.facts}) for complaint in own]
        if self.system.complaints:
            pattern = re.compile(self.system.complaints, re.MULTILINE)
            for log in sorted((run_folder / "nodes").glob("*/*.log")):
                found += complaints_of(log.parent.name, log.read_text(errors="replace"), pattern)
        return found

    def last_words(self, node_folder: Path, pid: int) -> str:
        return last_words(node_folder, pid)

    def looked_at(self, live: Collection[str]) -> Mapping[str, LookedAt]:
        looked = {name: tuple(self._looked_at.get(name, ())) for name in live}
        return {name: LookedAt(words, not set(words) <= {NO_LEADER}) for name, words in looked.items()}

    def keep(self, run_folder: Path) -> None:
        """Keep the files of the system with the run, so that it is judged, and run again, with what it was run with.

        A file that nodes need from outside its folder is not kept.
        """
        for name, text in self.files.items():
            path = run_folder / FOLDER / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        for here in self._beside():
            path = run_folder / FOLDER / here
            path.parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(self.main.parent / here, path)
        (run_folder / FOLDER / _MAIN).write_text(json.dumps({"main": self.main.name, "which": self.which}))

    def _beside(self) -> list[str]:
        """The files for nodes that stand in the folder of the main file and are not its own Python files, in order."""
        names = {os.path.normpath(here) for here in (*self.needs.files.values(), *self._sources())}
        within = {name for name in names if not Path(name).is_absolute() and ".." not in Path(name).parts}
        return sorted(within - {*self.files})

    def _sources(self) -> list[str]:
        """The files of the crates, of which cargo makes their programs again."""
        beside = self.main.parent
        found = [path for crate in self.needs.crates.values() for path in (beside / crate.folder).rglob("*")]
        return [str(path.relative_to(beside)) for path in found if path.is_file() and "target" not in path.parts]

    async def _install(self, own: OwnNode) -> None:
        """A fresh data directory with the files that the system needs.  Raises OSError, and BrokenSystem."""
        node, user = own.node, self.needs.user
        script = 'rm -rf "$1" && mkdir -p "$1" "$2" && chmod 700 "$1"'
        if user:
            script += ' && { [ "$(id -u)" != 0 ] || chown -R "$3" "$1" "$2"; }'
        done = await node.run(["sh", "-c", script, "sh", node.data_dir, node.log_dir, user], timeout_s=_COMMAND_S)
        done.succeeded(f"{node.name}: its data directory cannot be made")
        wanted: dict[str, str | Path] = {**self.needs.files, **self.programs}
        for there, here in wanted.items():
            try:
                data = (self.main.parent / here).read_bytes()
            except OSError as problem:  # it was there when the system was read, or this is the copy of a run
                raise BrokenSystem(f"{self.main.name}: needs: {here} cannot be read: {in_words(problem)}") from problem
            await node.write(own.path(there), data)
            await own.run(["chmod", "755", own.path(there)])

    def _as_user(self, argv: list[str]) -> list[str]:
        """The command as the user that the system needs; a node that runs as that user already changes nothing."""
        user = self.needs.user
        if not user:
            return argv
        change = f'[ "$(id -un)" = {user} ] && exec "$@"; exec setpriv --reuid={user} --regid={user} --init-groups "$@"'
        return ["sh", "-c", change, "sh", *argv]


def kept(run_folder: Path) -> str | None:
    """The name of the system whose files were kept with a stored run, None where none were kept.

    Raises ValueError for an index that does not name them.
    """
    index = run_folder / FOLDER / _MAIN
    if not index.is_file():
        return None
    try:
        main, which = _named_by(index)
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise ValueError(f"{FOLDER}/{_MAIN} does not name the system of the run") from problem
    return str(index.parent / main) + (f":{which}" if which else "")


def _named_by(index: Path) -> tuple[str, str]:
    """The main file and the class that an index names.  Raises ValueError, KeyError, TypeError or AttributeError."""
    stored = json.loads(regular(index).read_text())
    return stored["main"], stored.get("which", "")


def _is_kept(main: Path) -> bool:
    """Whether this main file is the copy that a run kept.  What nodes need from outside its folder is not kept."""
    try:
        return main.parent.name == FOLDER and _named_by(main.with_name(_MAIN))[0] == main.name
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


async def _lines(node: Node, log: str) -> list[str]:
    """The lines of one of its logs that are not empty; [] if it cannot be read."""
    try:
        text = (await node.read(f"{node.log_dir}/{log}")).decode(errors="replace")
    except OSError:
        return []
    return [line.rstrip() for line in MARK.sub("", text).splitlines() if line.strip()]


def _leader_named(name: str, status: NodeStatus) -> str | None:
    """The node that this status takes for the leader, None if it names none."""
    return name if status.role == "leader" else status.leader


def _check_one_leader(statuses: Mapping[str, NodeStatus]) -> None:
    """Raises NotKnown where two nodes name different leaders, or where the one that they name does not lead."""
    named = {name: leader for name, status in statuses.items() if (leader := _leader_named(name, status))}
    if len(set(named.values())) > 1:
        words = ", ".join(f"{name} takes {leader} for the leader" for name, leader in named.items())
        raise NotKnown(f"the nodes do not agree: {words}")
    for name, leader in named.items():
        if leader not in statuses:
            raise NotKnown(f"{name} takes {leader} for the leader, and the server of {leader} is dead")
        if statuses[leader].role != "leader":
            raise NotKnown(f"{name} takes {leader} for the leader, and {leader} does not report that it leads")


def _functions(kind: type[Client]) -> frozenset[str]:
    """The functions that a client has: those of the table, and its other methods, which an own workload may name."""
    own = {name for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name))}
    return frozenset(name for name in FUNCTIONS if hasattr(kind, name)) | (own - set(dir(Client)))
