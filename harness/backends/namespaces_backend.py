"""The namespaces backend: a process per node, each in a network namespace, and a userspace switch between the nodes.

    harness ── socket ───► agent of every node
            ── socket ───► agent of the helper, which runs the switch
            ── socket ───► warden (PID 1)      when it exits, all other processes die

The network of a run cannot be seen or reached from outside: the machine gets no interface, no firewall rule and no
named namespace.  Only the run's folder is on disk.  The warden removes it; if the warden was killed together with the
harness, the next run sweeps it.

*Test.*  To learn whether this machine lets us make namespaces, the test makes them, and in them a mount, a veth pair
and a packet socket.  Nothing less is sufficient: on Ubuntu 24.04, for example, an unprivileged `unshare` succeeds, but
the process gets no capabilities.

*Needs.*  Nodes use this machine's programs, so no package is installed.  If a package is missing, the message names the
command that installs it.  Wheels are fetched into a folder of the cache, for this machine's Python, which nodes use.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import pwd
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from checkers.record.header_and_outcome import NodesClock
from harness.agent.process import NodeVerbs
from harness.backends.agent_cluster import SwitchedCluster, addresses
from harness.backends.agent_link import AgentLink
from harness.backends.backend import BackendUnavailable, ClusterSpec
from harness.backends.builds import REPOSITORY, digest, fetch_jars, fetch_wheels, run_watched
from harness.backends.leftovers import Swept, current_owner, sweep
from harness.backends.warden import SUBNET, PlannedNode, WardenPlan, mac_of
from system_under_test.subject import Jars, Needs, NodeGone

FOLDER_PREFIX = "krucible-nodes-"
HELPER = "helper"
_READY_S = 60.0
_END_S = 10.0


class NamespacesBackend(SwitchedCluster):
    """See `harness.backends.backend.Backend`."""

    name = "namespaces"
    nodes_clock: NodesClock = "same kernel"

    def __init__(self, spec: ClusterSpec) -> None:
        super().__init__(spec)
        self.notes: Sequence[str] = (
            "nodes are processes in network namespaces; links are cut by a switch in userspace, no kernel bridge",
            "all nodes keep their disks in one folder of this machine's temporary directory",
        )
        self._address_of = addresses(SUBNET, spec.servers, spec.clients)
        self._folder: Path | None = None
        self._provided: Mapping[str, str] = {}
        self._stop = threading.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._control: socket.socket | None = None
        self._agents: list[AgentLink] = []
        """Links to all agents.  `_links` contains only those that have answered."""

    async def create(self, progress: Callable[[str], None]) -> None:
        began = time.monotonic()
        argv, reason = await asyncio.to_thread(_found)
        if argv is None:
            raise BackendUnavailable(f"No nodes can be made here: {reason}.")
        swept = await asyncio.to_thread(sweep_folders)
        for name in swept.removed:
            progress(f"removed the folder {name} of a dead run")
        self.leftovers += swept.left
        self._provided = await asyncio.to_thread(provide, self.spec.needs, progress, self._stop)
        self._folder = Path(tempfile.mkdtemp(prefix=f"{FOLDER_PREFIX}{self.spec.run_id}-"))
        self._folder.chmod(0o711)  # a server that runs as a user of its own must reach its data directory
        (self._folder / "owner").write_text(current_owner())
        try:
            await self._start(argv)
            await self.open_links("does a firewall drop packets in new network namespaces?")
        except (NodeGone, TimeoutError) as problem:
            raise BackendUnavailable(f"The nodes did not come up: {problem or 'no answer in time'}.") from problem
        progress(f"{len(self._address_of)} nodes answer after {time.monotonic() - began:.1f} s")

    def command_on(self, name: str, words: Sequence[str]) -> str:
        """See AgentCluster.command_on.  The command enters all namespaces of the node's agent, as root or as the user
        of this process."""
        assert self._folder is not None and self._process is not None
        folder = self._folder / name
        agent = next((pid for pid in _descendants(self._process.pid) if _works_in(pid, folder)), None)
        if agent is None:
            raise NodeGone(f"{name}: its agent is not among the processes of this machine")
        path = _environment(self.spec.run_id, self._provided)["PYTHONPATH"]
        enter = ["nsenter", "--target", str(agent), "--all", "--preserve-credentials", f"--wd={folder}"]
        return shlex.join([*enter, *(["env", f"PYTHONPATH={path}"] if words != ["bash"] else []), *words])

    async def destroy(self) -> None:
        self._stop.set()
        await asyncio.gather(*(link.close() for link in self._agents))
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            try:
                await asyncio.wait_for(self._process.wait(), _END_S)
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()  # also kills the warden, and with it the whole pid namespace
                try:
                    await asyncio.wait_for(self._process.wait(), _END_S)
                except TimeoutError:
                    self.leftovers.append(f"the process {self._process.pid} of the nodes does not end after SIGKILL")
            self._process = None
        if self._folder is not None:
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
            self._folder = None

    # ---- creating ----------------------------------------------------------------------------------------------

    async def _start(self, argv: Sequence[str]) -> None:
        assert self._folder is not None
        loop = asyncio.get_running_loop()
        plan = WardenPlan(tuple(self._planned()), str(self._folder / HELPER))
        control, their_control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control, theirs = control, [their_control]
        try:
            for folder in (plan.helper_folder, *(node.folder for node in plan.nodes)):
                ours, their_end = socket.socketpair()
                theirs.append(their_end)
                self._agents.append(await self._linked(Path(folder), ours))
            with (self._folder / "warden.log").open("ab") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *argv,
                    *(sys.executable, "-P", "-m", "harness.backends.warden"),
                    *(str(their_control.fileno()), str(self._folder)),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=_environment(self.spec.run_id, self._provided),
                    start_new_session=True,
                    pass_fds=(their_control.fileno(),),
                )
            socket.send_fds(control, [msgspec.json.encode(plan)], [end.fileno() for end in theirs[1:]])
        finally:
            for end in theirs:
                end.close()
        control.setblocking(False)
        answer = json.loads(await asyncio.wait_for(loop.sock_recv(control, 1 << 16), _READY_S) or b"{}")
        if "ready" not in answer:
            words = (
                answer.get("error") or _last_line(self._folder / "warden.log") or "it ended without an error message"
            )
            raise BackendUnavailable(f"The nodes did not come up: the warden: {words}.")
        helper, *agents = self._agents
        await asyncio.gather(*(self._greet(node, link) for node, link in zip(plan.nodes, agents, strict=True)))
        try:
            await self.start_switch(helper, [(node.name, node.port, node.mac, "") for node in plan.nodes])
        except OSError as problem:
            raise BackendUnavailable(f"The nodes did not come up: {problem.strerror or problem}.") from problem

    def _planned(self) -> Iterator[PlannedNode]:
        assert self._folder is not None
        for place, (name, address) in enumerate(self._address_of.items()):
            yield PlannedNode(name, address, mac_of(place), f"port{place}", str(self._folder / name))

    async def _linked(self, folder: Path, stream: socket.socket) -> AgentLink:
        name, log = folder.name, folder / "agent.log"
        reader, writer = await asyncio.open_connection(sock=stream, limit=1 << 20)
        return AgentLink(name, reader, writer, lambda event: self.heard(name, event), lambda: _last_line(log))

    async def _greet(self, node: PlannedNode, link: AgentLink) -> None:
        await link.ask(NodeVerbs.hello)
        await self.add(link, node.address, node.folder, (sys.executable,))


def _environment(run_id: str, provided: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the warden and the agents.

    provided: result of `provide`"""
    path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"), provided.get("PYTHONPATH"))))
    search = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    more = {"PYTHONPATH": path, "PATH": search, "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return {**os.environ, **provided, **more, "KRUCIBLE_RUN": run_id}


def sweep_folders() -> Swept:
    """Remove the folders that dead runs of this user left."""
    folders = {}
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"):
        with contextlib.suppress(FileNotFoundError):  # it has no owner yet, or another run's sweep is removing it
            if folder.stat().st_uid == os.geteuid():
                folders[str(folder)] = (folder / "owner").read_text()
    return sweep(folders, _remove_folder)


def _remove_folder(folder: str) -> str:
    shutil.rmtree(folder, ignore_errors=True)
    return f"the folder {folder} of a dead run cannot be removed: remove it by hand" if Path(folder).exists() else ""


def _descendants(pid: int) -> Iterator[int]:
    """Yield the ids of a process' descendants, parents first, without processes that end during the call."""
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                yield child
                yield from _descendants(child)


def _works_in(pid: int, folder: Path) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cwd").readlink() == folder
    return False


def _last_line(path: Path) -> str:
    try:
        lines = path.read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1] if lines else ""


TOOLS = {"unshare": "util-linux", "nsenter": "util-linux", "ip": "iproute2"}
_SECONDS = 10.0
_TRY = (
    "mount -t tmpfs krucible /run && ip link add name kr0 type veth peer name kr1 && "
    f'"{sys.executable}" -P -c "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)"'
)
_NAMESPACES = ("--mount", "--net", "--pid", "--fork", "--mount-proc", "--kill-child")


def why_unavailable() -> str | None:
    """Return why this machine cannot run the backend, and what to do about it; None if it can."""
    argv, reason = _found()
    return None if argv else reason


def _found() -> tuple[tuple[str, ...] | None, str]:
    """Return (the arguments of an `unshare` that works here, ""), or (None, why none works)."""
    search = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"  # a user's PATH often lacks the directory of `ip`
    missing = [f"{tool} (package {package})" for tool, package in TOOLS.items() if not shutil.which(tool, path=search)]
    if missing:
        return None, f"network namespaces need {', '.join(missing)}: install it"
    error = ""
    as_root = (("unshare", *_NAMESPACES),) if os.geteuid() == 0 else ()
    for argv in (*as_root, ("unshare", "--user", "--map-root-user", *_NAMESPACES)):
        try:
            done = subprocess.run(
                [*argv, "sh", "-c", _TRY],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_SECONDS,
                check=False,
                env={**os.environ, "PATH": search},
            )
        except subprocess.TimeoutExpired:
            error = f"making a namespace took longer than {_SECONDS:g} s"
            continue
        if done.returncode == 0:
            return argv, ""
        error = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    return None, (
        f"this kernel or container does not let us make network namespaces ({error}): run as root with CAP_SYS_ADMIN, "
        "or allow user namespaces (sysctl kernel.apparmor_restrict_unprivileged_userns=0, user.max_user_namespaces>0)"
    )


def provide(needs: Needs, progress: Callable[[str], None], stop: threading.Event) -> Mapping[str, str]:
    """Fetch wheels and Java archives, and return the environment variables that name their folders.

    Raises BackendUnavailable if the nodes lack something, Interrupted soon after `stop` is set."""
    if needs.image:
        raise BackendUnavailable(
            f"The system needs the image {needs.image}, but nodes in namespaces use no images: choose BACKEND=docker."
        )
    missing = [package for package in needs.debian if not _installed(package)]
    if missing:
        words = " ".join(missing)
        raise BackendUnavailable(
            f"Nodes in namespaces use this machine's programs, and {words} is not installed here: "
            f"run `apt-get install {words}`, or choose BACKEND=docker."
        )
    if needs.user and not _known(needs.user):
        raise BackendUnavailable(f"There is no user {needs.user} on this machine: make one, or choose BACKEND=docker.")
    if needs.user and os.geteuid() != 0:
        raise BackendUnavailable(
            f"Only root can run servers as the user {needs.user}: run as root, or choose BACKEND=docker."
        )
    wheels = {}
    if needs.wheels:
        wheels = {"PYTHONPATH": str(fetch_wheels(needs.wheels, "", os.uname().machine, progress, stop))}
    jars = {"KRUCIBLE_JARS": str(_jars(needs.jars, progress, stop))} if needs.jars != Jars() else {}
    return {**wheels, **jars}


def _jars(jars: Jars, progress: Callable[[str], None], stop: threading.Event) -> Path:
    """Return the folder of the Java archives.  Run the command `prepare` there, unless it has run there before."""
    folder = fetch_jars(jars, progress, stop)
    done = folder / f"prepared-{digest(jars.prepare.encode())}"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            progress("preparing Java archives, once")
            environment = ["env", f"KRUCIBLE_JARS={folder}"]
            run_watched([*environment, "bash", "-c", f"cd {shlex.quote(str(folder))} && ({jars.prepare})"], stop)
            done.touch()
    return folder


def _installed(package: str) -> bool:
    argv = ["dpkg-query", "--show", "--showformat=${Status}", package]
    if shutil.which(argv[0]) is None:
        return False
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60.0)
    return done.stdout.endswith(" installed")


def _known(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True
