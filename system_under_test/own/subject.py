"""A `System` as a subject: defaults, and the interface between the author's code and the harness."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import re
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from system_under_test import subject
from system_under_test.client import Client
from system_under_test.functions import FUNCTIONS
from system_under_test.own import files_handed_over, processes_as_one_server, read_own_system
from system_under_test.own.mistakes import check_declared, mistake_in
from system_under_test.system import METADATA, TOPICS, Command, OwnNode, System, named_processes, wrong_commands

T = TypeVar("T")
_LOG = logging.getLogger("krucible")
_COMMAND_S = 10.0
_LAST_CHARACTERS = 300
NO_LEADER = "status: epoch, no leader"
"""Words of a check of recovery that proves nothing, because even a server outside its cluster passes it."""
_GO_CLOCK = "it is written in Go, which reads the clock without the C library, so no clock of it can be shifted"
_COPY = """
cd "$1" && aside="$2" && trace="$3" && shift 3 && mkdir -p "$aside" && shopt -s nullglob || exit 1
for pattern in "$@"; do
    for folder in $pattern; do
        [ -e "$aside/$folder" ] || cp -a --parents "$folder" "$aside" || exit 1
    done
    find "$(dirname "$pattern")" -maxdepth 1 -type f -exec cp -f --parents -t "$aside" {} + || exit 1
done
find "$aside" -name '*index' -size +1M -delete
[ ! -f "$trace" ] || stat -c %s "$trace"
"""
"""Script that copies the folders that match patterns, and plain files beside them, such as `meta.properties` and
checkpoints.

A folder that two patterns match is copied once: Kafka's snapshots are read-only, so a second copy would fail.
Kafka preallocates the indexes of its logs with 10 MiB; large indexes are omitted, because no checker reads them.
"""


class Subject:
    """A `System` as the harness sees it, with defaults, and with messages for exceptions of the author's methods.

    main: file that defines the system
    files: its Python files, which clients and runs need; {} for a bundled system
    which: name of its class as the user passed it; "" for the first class of the file
    client: class of its clients; None if a `client_module` creates them
    """

    def __init__(
        self, system: System, main: Path, module: ModuleType, files: Mapping[str, str], which: str = ""
    ) -> None:
        self.system, self.main, self.module, self.files, self.which = system, main, module, files, which
        self.name = system.name or (main.stem if main.name != "system.py" else main.resolve().parent.name)
        words = system.summary or type(system).__doc__ or module.__doc__ or self.name
        self.summary = inspect.cleandoc(words).splitlines()[0]
        self.client: type[Client] | None = (
            None if system.client_module else read_own_system.client_in(module, main.name, system)
        )
        check_declared(system, self.client, main, kept=files_handed_over.is_kept(main))
        self.client_module = system.client_module or "system_under_test.own.one_client_process"
        self.functions = system.functions or (_functions(self.client) if self.client else frozenset())
        self.keeps_to_one_server = self.client is not None or system.in_process
        self.parameters: Mapping[str, str | float] = system.parameters
        self.port = system.port
        self.usual: Mapping[str, float] = system.usual
        self._note_what_settings_decide()
        self.notices_damage: Mapping[str, str] = system.notices_damage
        self.bugs: Mapping[str, subject.Bug] = system.bugs
        self.simulated = system.simulated
        self.members, self.moments = system.members, system.moments
        self.declares = _declared(system, self.client)
        self._nodes: dict[str, OwnNode] = {}
        self._warned: set[str] = set()
        self.programs: Mapping[str, Path] = {}
        """Path on the node -> result on this machine, for each crate and artefact that the system needs."""
        self._looked_at: dict[str, list[str]] = {}
        """Node -> checks of the last `caught_up` besides the state of the process, in words."""

    @classmethod
    def read(cls, main: Path, which: str = "") -> Subject:
        """Read a user's own system.  Raises NoSystem.

        which: name of its class; "" for the first class of the file
        """
        module, files = read_own_system.read_files(main), read_own_system.files_of(main)
        system = read_own_system.system_in(module, main.name, which)
        return cls(system, main.absolute(), module, files, which)  # tracebacks contain absolute paths

    @classmethod
    def bundled(cls, kind: type[System]) -> Subject:
        return cls(kind(), Path(inspect.getfile(kind)), sys.modules[kind.__module__], {})

    def set(self, settings: Mapping[str, str]) -> None:
        """Set parameters of the system.  Raises ValueError, with a message of one sentence, for an invalid value."""
        given: dict[str, str | float] = {}
        for name, text in settings.items():
            usual = self.parameters[name]
            try:
                given[name] = text if isinstance(usual, str) else type(usual)(float(text))
            except ValueError:
                words = f"--set {name} of {self.name} takes a number such as {usual}, not {text!r:.60}"
                raise ValueError(words) from None
        self.system.settings = {**self.parameters, **given}
        self.system.check_settings()
        self._note_what_settings_decide()

    def live(self, node: subject.Node, started_monotonic_ns: int) -> subject.Live:
        """Follow a running node of a system with `kraft_steps`."""
        return self.system.live(self._nodes[node.name], started_monotonic_ns)

    def _note_what_settings_decide(self) -> None:
        """Compute the attributes that depend on settings.  If one of the files is a Go program, clock faults are marked
        as unreachable.
        """
        self.needs = self.system.needs
        beside = self.main.parent
        here = next((name for name in self.needs.files.values() if files_handed_over.is_go(beside / name)), None)
        of_files = {} if here is None else {"clock": f"{here}: {_GO_CLOCK}"}
        self.unreachable_by: Mapping[str, str] = {**of_files, **self.system.unreachable_by}
        self.processes: Mapping[str, str] = named_processes(self.system.processes)
        self.versions = self._versions()

    async def install(self, nodes: Sequence[subject.Node], *, seed: int, bug: str | None) -> None:
        """Install the system on all nodes.  Raises ValueError for an unknown bug, OSError, and BrokenSystem."""
        if bug is not None and bug not in self.bugs:
            raise ValueError(f"subject {self.name} has no planted bug {bug!r}; it has {', '.join(self.bugs) or 'none'}")
        self._nodes = {node.name: OwnNode(node, index) for index, node in enumerate(nodes)}
        self.system.seed, self.system.bug, self.system.nodes = seed, bug, list(self._nodes.values())
        await asyncio.gather(*map(self._install, self._nodes.values()))
        await self._called("installed", self.system.installed(self.system.nodes))

    async def start(self, node: subject.Node) -> None:
        own = self._nodes[node.name]
        if self.versions is not None:
            own.version = self.versions.ordered.get(own.name, self.versions.names[0])
        commands = await self._called("start", self.system.start(own, list(self._nodes.values())))
        if wrong := wrong_commands(commands) or self._unnamed(commands):
            raise read_own_system.BrokenSystem(f"{self.main.name}: start returned {wrong}")
        own.starts += 1
        output = f"{node.log_dir}/server.log"
        if self.simulated:  # a program on virtual time receives its arguments without a shell
            await node.start(list(commands), output=output)
        elif isinstance(commands, Mapping):
            named = json.dumps({name: self._as_user(own.words(command)) for name, command in commands.items()})
            together = [*node.python, "-m", "system_under_test.own.processes_as_one_server", named, node.log_dir]
            await node.start(
                together, env={processes_as_one_server.CONTROL: f"{node.trace_dir}/processes"}, output=output
            )
        else:
            await node.start([*processes_as_one_server.ANNOUNCED, *self._as_user(own.words(commands))], output=output)
        if self.versions is not None:
            self.versions.started[own.name] = own.version

    async def _called(self, method: str, called: Awaitable[Any]) -> Any:
        """Return the result of an author's method.  Raises OSError if a node refused, because a fault may be the
        reason.  Raises BrokenSystem for any other exception.
        """
        try:
            return await called
        except Exception as problem:
            own_files = [self.main.parent / name for name in self.files or (self.main.name,)]
            if isinstance(problem, OSError) and not read_own_system.raised_in(own_files, problem):
                raise
            raise read_own_system.BrokenSystem(read_own_system.blamed(self.main, method, problem)) from problem

    def _unnamed(self, commands: Command | Mapping[str, Command]) -> str:
        """Return a message if these commands lack a process that the system names; "" if they are complete."""
        started = set(commands) if isinstance(commands, Mapping) else set()
        missing = [name for name, pattern in self.processes.items() if not pattern and name not in started]
        if not missing:
            return ""
        there = f"the commands of {', '.join(sorted(started))}" if started else "one command without a name"
        return f"{there}, and `processes` names {missing[0]}: return {{{missing[0]!r}: command, …}}"

    def _versions(self) -> subject.ServerVersions | None:
        if len(self.system.versions) < 2:
            return None

        async def ready() -> str:
            return await self.ready([own.node for own in self._nodes.values()]) or ""

        async def raise_levels() -> None:
            await self._called("upgraded", self.system.upgraded(list(self._nodes.values())))

        return subject.ServerVersions(tuple(self.system.versions), ready, raise_levels)

    async def status(self, node: subject.Node) -> subject.NodeStatus | None:
        own = self._nodes.get(node.name)
        if own is None or await node.state() != "running":
            return None
        try:
            status = await self.system.status(own)
        except Exception as problem:  # noqa: BLE001 - the author may not expect all answers of a failing server
            self._end_of_mistake("status", problem)
            self._warn_once(read_own_system.blamed(self.main, "status", problem))
            return None
        if wrong := self._wrong_status(status):
            self._warn_once(f"{self.main.name}: status returned {wrong}; the harness treats it as None")
            return None
        return status

    def _end_of_mistake(self, method: str, problem: BaseException) -> None:
        """Raise CodeMistake if the exception is a mistake in the author's code."""
        if mistake := mistake_in(self.main.parent, problem):
            raise read_own_system.CodeMistake(f"{mistake} (in {method})") from problem

    def _wrong_status(self, status: object) -> str:
        """Return why this is no valid status; "" if it is valid.  None is valid: the node reports nothing."""
        if status is None:
            return ""
        if not isinstance(status, subject.NodeStatus):
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

    async def ready(self, nodes: Sequence[subject.Node]) -> str | None:
        for node in nodes:
            if (state := await node.state()) != "running":
                return f"the server of {node.name} is {state}{await self._last_words(node)}"
        try:
            missing = await self.system.ready(list(self._nodes.values()))
        except Exception as problem:  # noqa: BLE001 - as in status: the server may not be ready
            self._end_of_mistake("ready", problem)
            return read_own_system.blamed(self.main, "ready", problem)
        return self._words(missing, "ready") or await self._without_status()

    async def _without_status(self) -> str | None:
        """Return None if every node of a ready system has a status; else which node has none.  Raises BrokenSystem for
        an invalid status.
        """
        for own in self._nodes.values() if self._has("status") else ():
            try:
                status = await self.system.status(own)
            except Exception as problem:  # noqa: BLE001 - as in status
                self._end_of_mistake("status", problem)
                return read_own_system.blamed(self.main, "status", problem)
            if wrong := self._wrong_status(status):
                raise read_own_system.BrokenSystem(f"{self.main.name}: status returned {wrong}")
        return None

    async def _last_words(self, node: subject.Node) -> str:
        """Return the last lines that a server printed, which mostly tell why the server ended."""
        name, lines = "server.log", await _lines(node, "server.log")
        # Each of several processes has its own log.
        if lines and (ended := processes_as_one_server.ENDED.fullmatch(lines[-1])):
            name = f"{ended['process']}.log"
            lines = [*await _lines(node, name), lines[-1]]
        if not lines:
            return "; it printed nothing: a command must keep the server in the foreground"
        return f"; its {name} ends: {' | '.join(processes_as_one_server.last_lines(lines))[-_LAST_CHARACTERS:]}"

    def _words(self, missing: object, method: str) -> str | None:
        """Return the missing thing that a method reports, or None.  Raises BrokenSystem if the result is neither a text
        nor None.
        """
        if missing is None or (isinstance(missing, str) and missing):
            return missing
        words = "None or what is missing, in words, is expected"
        raise read_own_system.BrokenSystem(f"{self.main.name}: {method} returned {missing!r:.60}, where {words}")

    async def caught_up(self, nodes: Sequence[subject.Node], key_count: int) -> str | None:
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
        """Return what is missing according to `status` and `ready`, if the system has these methods.  Raises NotKnown
        if they do not determine the state.
        """
        if self._has("status"):
            statuses = {own.name: await self._answer("status", self.system.status(own)) for own in live}
            for name, status in statuses.items():
                if status is None:
                    problem = self._nodes[name].problem
                    return f"{name} gives no status{f' ({problem})' if problem else ''}"
                if wrong := self._wrong_status(status):
                    raise read_own_system.BrokenSystem(f"{self.main.name}: status returned {wrong}")
            _check_one_leader(statuses)
            for own in live:
                named = _leader_named(own.name, statuses[own.name])
                self._looked("status: epoch and leader" if named else NO_LEADER, [own])
        if (
            self._has("ready") and all_live
        ):  # `ready` may require all servers, so it is not called while a server is dead
            missing = self._words(await self._answer("ready", self.system.ready(live)), "ready")
            if missing:  # `ready` may only work after a first start, so its result is no violation
                raise subject.NotKnown(f"after the heal `ready` says: {missing} (a `caught_up` would decide)")
            self._looked("ready()", live)
        return None

    def _has(self, method: str) -> bool:
        """Return True if the author defined this method."""
        return getattr(type(self.system), method) is not getattr(System, method)

    def _looked(self, words: str, at: Sequence[OwnNode]) -> None:
        for own in at:
            self._looked_at[own.name].append(words)

    async def _answer(self, method: str, called: Awaitable[Any]) -> Any:
        """Return the result of an author's async method.  Raises BrokenSystem for its exceptions."""
        try:
            return await called
        except subject.NotKnown:
            raise
        except Exception as problem:
            self._end_of_mistake(method, problem)
            raise read_own_system.BrokenSystem(read_own_system.blamed(self.main, method, problem)) from problem

    def _caught(self, method: str, call: Callable[[], T]) -> T:
        """Return the result of an author's blocking method.  Raises BrokenSystem for its exceptions."""
        try:
            return call()
        except Exception as problem:
            raise read_own_system.BrokenSystem(read_own_system.blamed(self.main, method, problem)) from problem

    async def leader_of(self, key: str) -> str | None:
        """Return the leader of a key; None if the system does not know it.  Logs exceptions of the author's method, but
        raises CodeMistake for a mistake in the code.
        """
        try:
            leader: str | None = await self._answer("leader_of", self.system.leader_of(key))
        except read_own_system.CodeMistake:
            raise
        except subject.NotKnown as problem:
            self._warn_once(str(problem))
            return None
        if leader is not None and leader not in self._nodes:
            self._warn_once(f"{self.main.name}: leader_of returned {leader!r:.60}, which is no node's name")
            return None
        return leader

    def client_config(self, *, seed: int, bug: str | None) -> dict[str, Any]:
        config = {"seed": seed, "bug": bug, "settings": dict(self.system.settings or self.parameters)}
        if self.client is None:
            return {**config, **self.system.client_config()}
        # a client needs nothing else of a bundled system
        main = self.main.name if self.files else self.client.__module__
        return {**config, "files": self.files, "main": main, "client": read_own_system.import_path_of(self.client)}

    async def copy(self, node: subject.Node, aside: str) -> int:
        """Copy the folders of `logs`, and the files beside them.  Raises OSError.

        If these folders are at the top of the data directory, copy the entire data directory.
        """
        if not any("/" in pattern for pattern in self.system.logs.values()):
            return await node.copy_data(aside)
        patterns = list(self.system.logs.values())
        argv = ["bash", "-c", _COPY, "copy", node.data_dir, aside, f"{node.trace_dir}/{self.system.traces}", *patterns]
        done = await node.run(argv, timeout_s=_COMMAND_S)
        return int(done.succeeded(f"{node.name}: its logs cannot be copied").stdout or 0)

    def tables(self, run_folder: Path, copies: Sequence[subject.Collected], started_on: subject.StartedOn) -> None:
        # imported here, so that listing subjects does not load Arrow
        from system_under_test.kraft.collected.files import write_tables
        from system_under_test.kraft.collected.two_implementations import write_comparisons, write_topics

        beside = Path(self.system.logs.get(METADATA, "")).parent
        write_tables(run_folder, [replace(copy, folder=copy.folder / beside) for copy in copies], started_on)
        if TOPICS in self.system.logs:
            write_topics(run_folder, copies, self.system.logs[TOPICS])
        if self.declares.two_implementations:
            rows = self._caught("comparisons", lambda: list(self.system.comparisons(run_folder, copies)))
            write_comparisons(run_folder, rows)

    async def collect(self, node: subject.Node, folder: Path) -> None:
        """Copy the node's log folder to `nodes/<n>` of the run, and its trace to `trace/<n>.jsonl`."""
        await node.copy_out(node.log_dir, folder)
        if not self.declares.traces:
            return
        trace = folder.parents[1] / "trace" / f"{node.name}.jsonl"
        trace.parent.mkdir(parents=True, exist_ok=True)
        if self.system.traces:
            have = trace.stat().st_size if trace.exists() else 0
            new = await node.read(f"{node.trace_dir}/{self.system.traces}", have)
            with trace.open("ab") as file:
                # whole rows only: an incomplete one is removed at the next start
                file.write(new[: new.rfind(b"\n") + 1])
        else:
            rows = self._caught(
                "trace_of", lambda: [json.dumps(row) for row in self.system.trace_of(node.name, folder)]
            )
            trace.write_text("".join(f"{row}\n" for row in rows))

    def complaints(self, run_folder: Path) -> Sequence[subject.Complaint]:
        """Return the complaints of each life of a server, as `complaints_of` yields them."""
        unplaced = {"pid": processes_as_one_server.NO_LIFE, "lines_before_end": 0}
        own = self._caught("complaints_in", lambda: self.system.complaints_in(run_folder / "nodes"))
        found = [replace(complaint, facts={**unplaced, **complaint.facts}) for complaint in own]
        if self.system.complaints:
            pattern = re.compile(self.system.complaints, re.MULTILINE)
            for log in sorted((run_folder / "nodes").glob("*/*.log")):
                found += processes_as_one_server.complaints_of(
                    log.parent.name, log.read_text(errors="replace"), pattern
                )
        return found

    def last_words(self, node_folder: Path, pid: int) -> str:
        return processes_as_one_server.last_words(node_folder, pid)

    def looked_at(self, live: Collection[str]) -> Mapping[str, subject.LookedAt]:
        looked = {name: tuple(self._looked_at.get(name, ())) for name in live}
        return {name: subject.LookedAt(words, not set(words) <= {NO_LEADER}) for name, words in looked.items()}

    def keep(self, run_folder: Path) -> None:
        """Store the files of the system with a run."""
        files_handed_over.keep(run_folder, self.main, self.which, self.files, self.needs)

    async def _install(self, own: OwnNode) -> None:
        """Create a fresh data directory with the files that the system needs.  Raises OSError, and BrokenSystem.

        A program on virtual time creates its own data directory, because it has no shell.
        """
        node, user = own.node, self.needs.user
        if self.simulated:
            await self._called("install", self.system.install(own, self.system.nodes))
            return
        script = 'rm -rf "$1" && mkdir -p "$1" "$2" && chmod 700 "$1"'
        if user:
            script += ' && { [ "$(id -u)" != 0 ] || chown -R "$3" "$1" "$2"; }'
        done = await node.run(["sh", "-c", script, "sh", node.data_dir, node.log_dir, user], timeout_s=_COMMAND_S)
        done.succeeded(f"{node.name}: its data directory cannot be made")
        folder = self.main.parent
        wanted = files_handed_over.files_under(folder, {**self.needs.files, **self.programs})
        for there, here in wanted.items():
            try:
                data = (folder / here).read_bytes()
            except OSError as problem:  # the file was deleted after the system was read, or this is a copied run
                raise read_own_system.BrokenSystem(
                    f"{self.main.name}: needs: {here} cannot be read: {read_own_system.in_words(problem)}"
                ) from problem
            await node.write(own.path(there), data)
        if wanted:
            await own.run(["chmod", "755", *map(own.path, wanted)])
        await self._called("install", self.system.install(own, self.system.nodes))

    def _as_user(self, argv: list[str]) -> list[str]:
        """Return the command that runs `argv` as the user that the system needs.  On a node that already runs as that
        user, it runs `argv` directly.
        """
        user = self.needs.user
        if not user:
            return argv
        change = f'[ "$(id -un)" = {user} ] && exec "$@"; exec setpriv --reuid={user} --regid={user} --init-groups "$@"'
        return ["sh", "-c", change, "sh", *argv]


async def _lines(node: subject.Node, log: str) -> list[str]:
    """Return the non-empty lines of a node's log; [] if the log cannot be read."""
    try:
        text = (await node.read(f"{node.log_dir}/{log}")).decode(errors="replace")
    except OSError:
        return []
    return [line.rstrip() for line in processes_as_one_server.MARK.sub("", text).splitlines() if line.strip()]


def _leader_named(name: str, status: subject.NodeStatus) -> str | None:
    """Return the node that this status names as the leader; None if it names none."""
    return name if status.role == "leader" else status.leader


def _check_one_leader(statuses: Mapping[str, subject.NodeStatus]) -> None:
    """Raise NotKnown if two nodes name different leaders, or if the named leader is dead or does not report that it
    leads.
    """
    named = {name: leader for name, status in statuses.items() if (leader := _leader_named(name, status))}
    if len(set(named.values())) > 1:
        words = ", ".join(f"{name} takes {leader} for the leader" for name, leader in named.items())
        raise subject.NotKnown(f"the nodes do not agree: {words}")
    for name, leader in named.items():
        if leader not in statuses:
            raise subject.NotKnown(f"{name} takes {leader} for the leader, and the server of {leader} is dead")
        if statuses[leader].role != "leader":
            raise subject.NotKnown(f"{name} takes {leader} for the leader, and {leader} does not report that it leads")


def _declared(system: System, client: type[Client] | None) -> subject.Declares:
    leads = type(system).status is not System.status
    of_keys = type(system).leader_of is not System.leader_of
    return subject.Declares(
        nodes=not system.in_process,
        logs=METADATA in system.logs,
        traces=bool(system.traces) or type(system).trace_of is not System.trace_of,
        elections=leads if system.elections is None else system.elections,
        faults=not system.in_process,
        leaders=leads or of_keys,
        leaders_of_keys=of_keys,
        each_server_serves=client is not None and client.leader is Client.leader and not client.routes_by_itself,
        routes_by_itself=client is not None and client.routes_by_itself,
        failover_s=float(system.failover_s),
        unavailable_s=float(system.unavailable_s),
        kraft_steps=system.kraft_steps,
        copied_every_s=float(system.logs_copied_every_s),
        registers_brokers=system.registers_brokers,
        topic_logs=TOPICS in system.logs,
        two_implementations=type(system).comparisons is not System.comparisons,
        nodes_min=system.nodes_min,
        voters_max=system.voters_max,
        forwards=system.forwards,
        fsyncs=not system.never_fsyncs,
    )


def _functions(kind: type[Client]) -> frozenset[str]:
    """Return the functions that a client has: functions of the table, and its other public methods, which a user's own
    workload may name.
    """
    own = {name for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name))}
    return frozenset(name for name in FUNCTIONS if hasattr(kind, name)) | (own - set(dir(Client)))
