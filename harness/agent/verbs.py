"""What the harness may order of a node: a table of verbs, and what each does with its arguments."""

from __future__ import annotations

import asyncio
import errno
import functools
import gc
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.agent import children, files
from harness.agent.children import Children
from harness.agent.disk.verbs import DiskVerbs
from harness.agent.frames import PIECE_BYTES
from harness.agent.hosted_clients import ClientsApart, HostedClients
from harness.agent.network import BeaconSender, FirewallTables, SwitchVerbs, Trials
from harness.agent.server import ProcessNames, ServerProcess
from harness.agent.wall_clock import ClockVerbs

Answer = tuple[dict[str, Any], bytes]
Verb = Callable[["AgentRequest"], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """One request.  piece: sends a part of a long answer; callable from any thread but the loop's, and blocks while
    the harness is slow to read."""

    args: Mapping[str, Any]
    body: bytes
    piece: Callable[[bytes], None]


class Verbs:
    """send: sends a frame that answers no request.  log: writes one line.
    without: environment variables that clients in a process of their own do not inherit.

    loop: set before the first verb; the server is signalled on its thread only.
    """

    def __init__(
        self, children: Children, send: Callable[..., None], log: Callable[[str], None], *, without: Sequence[str]
    ) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.rules = FirewallTables(children)
        self.apart = ClientsApart(children, send, without=without)
        self._children = children
        self._server = ServerProcess(children, send)
        self._clients = HostedClients(log)
        self._disk = DiskVerbs(self._kill_server)
        self._clock = ClockVerbs()
        self._trials = Trials()
        self._switch = SwitchVerbs(children)
        self._beacons: BeaconSender | None = None
        self._table: dict[str, Verb] = {
            "hello": self._hello,
            "start": self._start,
            "signal": self._signal,
            "process.signal": self._process_signal,
            "process.state": self._process_state,
            "kill.at_write": self._kill_at_write,
            "state": self._state,
            "run": self._run,
            "read": self._read,
            "write": self._write,
            "copy_out": self._copy_out,
            "clients.load": self._clients_load,
            "clients.open": self._clients_open,
            "clients.invoke": self._clients_invoke,
            "clients.close": self._clients_close,
            "apart.start": self._apart_start,
            "apart.signal": self._apart_signal,
            "apart.state": self._apart_state,
            "beacons.start": self._beacons_start,
            "beacons.interval": self._beacons_interval,
            "beacons.mark": self._beacons_mark,
            "beacons.count": self._beacons_count,
            "nft": self._nft,
            "trial.listen": self._trial_listen,
            "trial.send": self._trial_send,
            "trial.result": self._trial_result,
            "clock.install": self._clock_install,
            "clock.order": self._clock_order,
            "clock.read": self._clock_read,
            "disk.mount": self._disk_mount,
            "disk.behave": self._disk_behave,
            "disk.arm": self._disk_arm,
            "disk.reached": self._disk_reached,
            "disk.lose": self._disk_lose,
            "disk.loss": self._disk_loss,
            "disk.probe": self._disk_probe,
            "disk.damage": self._disk_damage,
            "disk.damaged": self._disk_damaged,
            "processor": self._processor,
            "switch.start": self._switch_start,
            "switch.order": self._switch_order,
        }

    async def answer(self, verb: str, request: AgentRequest) -> Answer:
        """Carry a verb out.  Raises what it raises, and OSError (ENOSYS) if there is no such verb."""
        carry_out = self._table.get(verb)
        if carry_out is None:
            raise OSError(errno.ENOSYS, f"this agent knows no {verb!r}")
        return await carry_out(request)

    async def _hello(self, request: AgentRequest) -> Answer:
        python = ".".join(map(str, sys.version_info[:3]))
        return {"pid": os.getpid(), "monotonic_ns": time.monotonic_ns(), "python": python}, b""

    async def _start(self, request: AgentRequest) -> Answer:
        return {"pid": self._server.start(request.args["argv"], request.args["env"], request.args["output"])}, b""

    async def _signal(self, request: AgentRequest) -> Answer:
        self._server.signal(request.args["name"])
        return {}, b""

    async def _process_signal(self, request: AgentRequest) -> Answer:
        names = ProcessNames(request.args["names"])
        self._server.signal_named(request.args["process"], request.args["name"], names)
        return {}, b""

    async def _process_state(self, request: AgentRequest) -> Answer:
        return {**self._server.state_named(request.args["process"], ProcessNames(request.args["names"]))}, b""

    async def _kill_at_write(self, request: AgentRequest) -> Answer:
        """Kill the server as soon as a file below `folder` changes; let it run if none does within `within_s`."""
        written = await _in_thread(files.await_write, Path(request.args["folder"]), request.args["within_s"])
        if written:
            self._server.signal("KILL")
        return {"written": written}, b""

    async def _state(self, request: AgentRequest) -> Answer:
        return {"state": self._server.state()}, b""

    async def _run(self, request: AgentRequest) -> Answer:
        status, out, err = await children.run(
            self._children, request.args["argv"], request.args["timeout_s"], request.body
        )
        return {"status": status, "stdout_bytes": len(out)}, out + err

    async def _read(self, request: AgentRequest) -> Answer:
        await _in_thread(
            files.read,
            request.args["path"],
            request.args["offset"],
            request.args["size_bytes"],
            request.piece,
            PIECE_BYTES,
        )
        return {}, b""

    async def _write(self, request: AgentRequest) -> Answer:
        await _in_thread(files.write, request.args["path"], request.body)
        return {}, b""

    async def _copy_out(self, request: AgentRequest) -> Answer:
        return {"kind": await _in_thread(files.pack, request.args["path"], request.piece, PIECE_BYTES)}, b""

    async def _clients_load(self, request: AgentRequest) -> Answer:
        await _in_thread(self._clients.load, request.args["module"])
        return {}, b""

    async def _clients_open(self, request: AgentRequest) -> Answer:
        await self._clients.open(
            request.args["module"], request.args["placements"], request.args["peers"], request.args["config"]
        )
        quiet_collector()
        return {}, b""

    async def _clients_invoke(self, request: AgentRequest) -> Answer:
        return await self._clients.invoke(
            request.args["thread"], request.args["request"], request.args["timeout_s"]
        ), b""

    async def _clients_close(self, request: AgentRequest) -> Answer:
        await self._clients.close()
        return {"overran": self._clients.overran, "escaped": self._clients.escaped}, b""

    async def _apart_start(self, request: AgentRequest) -> Answer:
        """From now on clients live in a process of their own."""
        await self.apart.start()
        return {}, b""

    async def _apart_signal(self, request: AgentRequest) -> Answer:
        self.apart.signal(request.args["name"])
        return {}, b""

    async def _apart_state(self, request: AgentRequest) -> Answer:
        return {"state": self.apart.state()}, b""

    async def _beacons_start(self, request: AgentRequest) -> Answer:
        if self._beacons is not None:
            await _in_thread(self._beacons.stop)
        self._beacons = BeaconSender(
            request.body,
            request.args["address"],
            request.args["port"],
            request.args["peers"],
            request.args["interval_ms"],
        )
        return {}, b""

    async def _beacons_interval(self, request: AgentRequest) -> Answer:
        self._beating().set_interval(request.args["interval_ms"])
        return {}, b""

    async def _beacons_mark(self, request: AgentRequest) -> Answer:
        return {"sent": self._beating().mark()}, b""

    async def _beacons_count(self, request: AgentRequest) -> Answer:
        return {"received": self._beating().count(request.args["windows"])}, b""

    async def _nft(self, request: AgentRequest) -> Answer:
        await self.rules.apply(request.body.decode(), request.args["owned"])
        return {}, b""

    async def _switch_start(self, request: AgentRequest) -> Answer:
        await self._switch.start(request.args["ports"], request.args["carries"], request.args["release"])
        return {}, b""

    async def _switch_order(self, request: AgentRequest) -> Answer:
        return await self._switch.order(request.args), b""

    async def _trial_listen(self, request: AgentRequest) -> Answer:
        await self._trials.listen(request.args["address"], request.args["port"])
        return {}, b""

    async def _trial_send(self, request: AgentRequest) -> Answer:
        peer = (request.args["peer"]["address"], request.args["peer"]["port"])
        sent = await self._trials.send(peer, request.args["trial"], request.args["count"], request.args["interval_s"])
        return {"sent": sent}, b""

    async def _trial_result(self, request: AgentRequest) -> Answer:
        return self._trials.result(request.args["trial"]), b""

    async def _clock_install(self, request: AgentRequest) -> Answer:
        return {"environment": await _in_thread(self._clock.install, request.args["folder"], request.body)}, b""

    async def _clock_order(self, request: AgentRequest) -> Answer:
        await _in_thread(self._clock.order, request.args["offset_s"], request.args["rate"])
        return {}, b""

    async def _clock_read(self, request: AgentRequest) -> Answer:
        heeded = await _in_thread(self._clock.is_heeded_by, self._server.processes())
        return {**asdict(await _in_thread(self._clock.read)), "heeded": heeded}, b""

    async def _disk_mount(self, request: AgentRequest) -> Answer:
        await _in_thread(self._disk.mount, request.args["path"], request.args["root"])
        return {}, b""

    async def _disk_behave(self, request: AgentRequest) -> Answer:
        await _in_thread(self._disk.behave, request.args["rules"], request.args["seed"])
        return {}, b""

    async def _disk_arm(self, request: AgentRequest) -> Answer:
        await _in_thread(self._disk.arm, request.args["operation"], request.args["nth"])
        return {}, b""

    async def _disk_reached(self, request: AgentRequest) -> Answer:
        return {"reached": await _in_thread(self._disk.has_reached)}, b""

    async def _disk_lose(self, request: AgentRequest) -> Answer:
        await _in_thread(self._disk.lose_power, request.args["kept"], request.args["seed"])
        return self._disk.last_loss(), b""

    async def _disk_loss(self, request: AgentRequest) -> Answer:
        return self._disk.last_loss(), b""

    async def _disk_probe(self, request: AgentRequest) -> Answer:
        return await _in_thread(self._disk.probe), b""

    async def _disk_damage(self, request: AgentRequest) -> Answer:
        if (state := self._server.state()) != "dead":
            raise OSError(errno.EBUSY, f"the disk of a server that is {state} cannot be damaged behind its back")
        return await _in_thread(
            self._disk.damage, request.args["files"], request.args["how"], request.args["seed"]
        ), b""

    async def _disk_damaged(self, request: AgentRequest) -> Answer:
        return await _in_thread(self._disk.last_damage), b""

    def _kill_server(self, wait: bool) -> None:
        """Called from a thread: processes are signalled on the loop's thread only."""

        async def kill() -> None:
            if wait:
                self._server.signal("KILL")
            else:
                self._server.kill_without_waiting()

        assert self.loop is not None
        asyncio.run_coroutine_threadsafe(kill(), self.loop).result()

    async def _processor(self, request: AgentRequest) -> Answer:
        waited_s, ran_s = children.of_processes(self._server.processes())
        sums = {"steal_s": children.steal_s(), "pressure_s": children.pressure_s()}
        return {**sums, "waited_s": waited_s, "ran_s": ran_s}, b""

    def _beating(self) -> BeaconSender:
        if self._beacons is None:
            raise OSError(errno.ESRCH, "no beacons were started on this node")
        return self._beacons


async def _in_thread(work: Callable[..., Any], *arguments: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, functools.partial(work, *arguments))


def quiet_collector() -> None:
    """What lives now lives to the end: keep the collector from walking it again, and let it run seldom."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)
