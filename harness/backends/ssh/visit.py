"""A visit to one host: log in, enter while no other run is there, and leave the host as it was.

reach    log in and look what is there                                     (blocks; call it with `in_thread`)
enter    send the code; the guard lets the run in, and removes what dead runs left
leave    wait until the guard has removed everything, and log out
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import shlex
import tarfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import paramiko

from harness.backends.backend import BackendUnavailable
from harness.backends.node_code import node_code
from harness.backends.remains.sweep import Swept
from harness.backends.ssh.connection import SshConnection
from harness.backends.ssh.facts import HostFacts, look
from harness.backends.ssh.inventory import Host
from harness.backends.ssh.stream import AttachedChannel, attach
from system_under_test.subject import Needs

SILENCE_S = 60.0
"""An agent that hears nothing for so long ends, and its guard removes everything."""
PATIENCE_S = 15.0
"""How long a run that has just ended may go on removing what it had on a host, before another one is refused."""
_READY_S = 60.0
"""Code has arrived and is unpacked, and another run has left the host, within so long."""
_REMOVED_S = 30.0
_LAST_WORDS_S = 2.0
_POOL = ThreadPoolExecutor(32, thread_name_prefix="ssh")
T = TypeVar("T")


def in_thread(work: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
    """paramiko blocks, and every host may keep a thread waiting."""
    return asyncio.get_running_loop().run_in_executor(_POOL, work, *arguments)


@dataclass(slots=True)
class Visit:
    """channel, attached: to the agent, once `enter` has begun."""

    host: Host
    connection: SshConnection
    facts: HostFacts
    channel: paramiko.Channel | None = None
    attached: AttachedChannel | None = None

    async def enter(
        self, run: str, packed: bytes, silence_s: float, patience_s: float = PATIENCE_S, *, stay: bool = True
    ) -> Sequence[str]:
        """Returns the dead runs that were removed.  stay: start an agent, which `attached` then speaks to.

        Raises BackendUnavailable if another run has the host, or if nothing can be started there.
        """
        folder = f"{self.host.folder}/{run}"
        given = {"folder": folder, "size_bytes": len(packed), "silence_s": silence_s}
        given |= {"patience_s": patience_s, "stay": stay}
        program = resources.files("harness.agent").joinpath("arrival.py").read_text()
        words = [*self.facts.prefix, self.facts.python, "-c", program, json.dumps(given)]
        self.channel = await in_thread(self.connection.open, f"exec {shlex.join(words)}")
        attached = self.attached = attach(self.channel)
        attached.writer.write(packed)
        line = await asyncio.wait_for(attached.reader.readline(), _READY_S)
        try:
            reply = json.loads(line)
        except ValueError:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(attached.ended.wait(), _LAST_WORDS_S)
            words = (line.decode(errors="replace") + attached.words()).strip().splitlines()
            raise BackendUnavailable(
                f"{self.host}: the agent did not start: {words[-1] if words else 'it ended without a word'}."
            ) from None
        if "refused" in reply:
            raise BackendUnavailable(f"{self.host}: {reply['refused']}: wait for its end, or use other hosts.")
        removed: Sequence[str] = reply["removed"]
        return removed

    async def leave(self) -> str:
        """Wait for the guard's end, which the end of the agent's stdin brings about, and log out.

        "" if everything was removed, else a sentence that says what is left.
        """
        try:
            if self.channel is None or self.attached is None:
                return ""
            ended = await in_thread(self.channel.status_event.wait, _REMOVED_S)
            if not ended or (status := self.channel.recv_exit_status()) < 0:
                return (
                    f"{self.host} did not confirm that everything was removed.  It does so by itself after "
                    f"{SILENCE_S:g} s of silence; else the next run there removes what is in {self.host.folder}"
                )
            if status == 0:
                return ""
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.attached.ended.wait(), _LAST_WORDS_S)
            words = self.attached.words().splitlines()
            left = [line.removeprefix("left: ") for line in words if line.startswith("left: ")]
            return f"{self.host}: {'; '.join(left)}" if left else ""
        finally:
            self.connection.close()


def reach(host: Host, needs: Needs) -> Visit:
    """Blocks.  Raises BackendUnavailable where the host cannot be used."""
    connection = SshConnection(host)
    try:
        return Visit(host, connection, look(connection, needs))
    except BaseException:
        connection.close()
        raise


def packed_code(site: Path | None) -> bytes:
    """A tar of what a host needs.  code/: this project's; site/: packages, if there is such a folder."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=3) as tar:  # networks are faster than level 9
        for path, content in node_code().items():
            entry = tarfile.TarInfo(f"code/{path}")
            entry.size, entry.mode = len(content), 0o644
            tar.addfile(entry, io.BytesIO(content))
        if site is not None:
            tar.add(site, "site", filter=_of_root)
    return packed.getvalue()


async def sweep_hosts(hosts: Sequence[Host], run: str) -> Mapping[Host, Swept]:
    """Remove now what dead runs left on hosts; a host that a run is using is left alone."""
    packed = await in_thread(packed_code, None)
    return dict(zip(hosts, await asyncio.gather(*(_sweep(host, run, packed) for host in hosts)), strict=True))


async def _sweep(host: Host, run: str, packed: bytes) -> Swept:
    try:
        visit = await in_thread(reach, host, Needs())
    except BackendUnavailable as problem:
        return Swept(left=(str(problem),))
    removed: Sequence[str] = ()
    words = ""
    try:
        removed = await visit.enter(run, packed, SILENCE_S, stay=False)
    except (BackendUnavailable, TimeoutError, OSError) as problem:
        words = str(problem) or f"{host}: no answer in time"
    left = await visit.leave()
    return Swept(tuple(removed), tuple(filter(None, (words, left))))


def _of_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    entry.mode |= 0o444
    return entry
