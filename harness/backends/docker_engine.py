"""The docker backend's requests to the Docker engine: find and remove objects of runs, create containers and networks.

*Labels.*  Every container, network and volume has two labels: its run, and the process that owns the run
(`harness.backends.leftovers`).  Objects to remove are found by these labels only.

*Removal.*  The end of a run, the reaper and the sweep of dead runs remove objects with the same functions.

No function of removal raises if the engine refuses a request.  Docker 20.10 sometimes keeps a network "with active
endpoints" although its container is gone, and no request removes that network before the engine restarts.  It occupies
one subnet and does no other harm.  So the caller gets a sentence about it, and goes on.

Containers are removed one after another.  Before Docker 23, two containers that leave a network at the same moment can
deadlock the engine: one holds the lock of the network and waits for the lock of all networks, the other holds the
second and waits for the first (moby pull request 42545).  The agents of a killed harness exit one after another for the
same reason (`docker_backend`).

*Containers.*  The harness has a stream to the agent in each container.

The agent is PID 1 and exits when its stdin ends.  StdinOnce makes the engine close the agent's stdin when the harness'
connection closes, so the containers of a killed harness end too.  Nodes get no capabilities, unless a run needs faults
of disks: then servers get SYS_ADMIN, which mounting needs, and access to any file.  The helper gets NET_ADMIN and
NET_RAW for the switch.

A container runs as the user that the system needs.  Docker gives capabilities only to root.  So if a run needs faults
of disks, the agent runs as root, and the system starts its processes as the other user (`setpriv`).

*Network.*  Nodes get addresses of a free /24 of 198.18.0.0/15, the benchmarking range, which is not routed.  They
cannot reach other networks.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import random
import ssl
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import docker
import requests
from docker.errors import APIError, DockerException
from docker.types import IPAMConfig, IPAMPool, LogConfig, Mount, Ulimit

from harness.agent.process import LINGER
from harness.backends.backend import BackendUnavailable
from harness.backends.leftovers import Reaper, Swept, current_owner, sweep
from system_under_test.subject import Needs

RUN_LABEL = "krucible.run"
OWNER_LABEL = "krucible.owner"
IMAGE_LABEL = "krucible.image"

REQUEST_TIMEOUT_S = 60
"""Maximum seconds for one answer of the engine.  Each piece of a build's output is one answer."""


def connect(timeout_s: float = REQUEST_TIMEOUT_S) -> Any:
    """Return a `docker.DockerClient` whose engine has answered a ping.  Raises BackendUnavailable if none answers."""
    try:
        client = docker.from_env(timeout=timeout_s, max_pool_size=20)
        client.ping()
    except (DockerException, OSError) as error:
        raise BackendUnavailable(_why_unavailable(error)) from error
    return client


def why_unavailable() -> str | None:
    """Return why the Docker engine cannot be used; None if it answers."""
    try:
        connect(timeout_s=5.0).close()
    except BackendUnavailable as unavailable:
        return str(unavailable)
    return None


def labels(run_id: str, owner: str) -> dict[str, str]:
    return {RUN_LABEL: run_id, OWNER_LABEL: owner}


def of_run(run_id: str) -> dict[str, Any]:
    """Return the engine's filter for all objects with the label of a run."""
    return {"label": f"{RUN_LABEL}={run_id}"}


def _why_unavailable(error: BaseException) -> str:
    words = str(error)  # the client library's message quotes the error
    if "Permission denied" in words:
        return (
            "Docker refuses this user: add it to the `docker` group (or run as root), or choose --backend namespaces."
        )
    if "No such file" in words:
        what = "its socket is missing" if Path("/usr/bin/docker").exists() else "it is not installed"
        return f"Docker does not run here ({what}): start it, set DOCKER_HOST, or choose --backend namespaces."
    return f"Docker does not answer ({words.splitlines()[0][:200]}): start it, or choose --backend namespaces."


REMOVE_S_MAX = 30.0
STUCK_S = 5.0
"""Seconds after the removal of its last container after which a network that still has endpoints counts as stuck."""

ENGINE_FAILURES = (DockerException, requests.RequestException, OSError)
"""Exceptions that a request to the engine may raise (APIError is a DockerException)."""

_NETWORK = "network"
_ALREADY = (404, 409)
"""Status codes for objects that no longer exist, or that another process is removing now."""


def remove_once(client: Any, run_id: str) -> dict[str, str]:
    """Try once to remove every object of a run.  Returns object -> why the engine refused its removal, or "".

    A refused object, such as a network whose last container is still being removed, is left for the next call.  Raises
    ENGINE_FAILURES only if the engine cannot list the objects.
    """
    api, found = client.api, dict[str, str]()
    for container in api.containers(all=True, filters=of_run(run_id)):
        found[f"container {_container_name(container)}"] = _remove_container(api, container)
    for network in api.networks(filters=of_run(run_id)):
        found[f"{_NETWORK} {network['Name']}"] = _remove_network(api, network["Id"])
    for volume in api.volumes(filters=of_run(run_id))["Volumes"] or []:
        found[f"volume {volume['Name']}"] = _refusal(partial(api.remove_volume, volume["Name"], force=True))
    return found


def remove_run(client: Any, run_id: str, limit_s: float = REMOVE_S_MAX, stuck_s: float = STUCK_S) -> str:
    """Remove every object of a run.  Return "" once all are gone, else one sentence: what is left, why, and what to do.

    limit_s: maximum seconds until it gives up
    stuck_s: maximum seconds until it gives up once only networks are left
    Does not raise if the engine fails.
    """
    began = stuck_since = time.monotonic()
    while True:
        try:
            found = remove_once(client, run_id)
        except ENGINE_FAILURES as problem:
            found = {f"run {run_id}": engine_words(problem)}
        if not found:
            return ""
        now = time.monotonic()
        if not all(thing.startswith(_NETWORK) for thing in found):
            stuck_since = now
        refused = {thing: words for thing, words in found.items() if words}
        if refused and (now - stuck_since > stuck_s or now - began > limit_s):
            return _sentence(refused)
        if now - began > 2 * limit_s:
            return f"run {run_id}: {len(found)} containers, networks or volumes remain after {now - began:.0f} s"
        time.sleep(0.05)


def remove_containers(client: Any, run_id: str) -> None:
    """Remove the containers of a run and keep its network.  Raises ENGINE_FAILURES."""
    deadline = time.monotonic() + REMOVE_S_MAX
    while there := client.api.containers(all=True, filters=of_run(run_id)):
        for container in there:
            if (words := _remove_container(client.api, container)) and time.monotonic() > deadline:
                raise DockerException(f"container {_container_name(container)} cannot be removed: {words}")
        time.sleep(0.05)


def reap(run_id: str) -> Callable[[], int]:
    """Return a function for the reaper.  Each call tries to remove the objects of the run, and returns their number."""
    client = connect()
    return lambda: len(remove_once(client, run_id))


def sweep_dead(client: Any, stuck_s: float = STUCK_S) -> Swept:
    """Remove objects left in the engine by runs whose owner is certainly dead.  Does not raise if the engine fails."""
    try:
        return sweep(runs(client), lambda run_id: remove_run(client, run_id, stuck_s, stuck_s))
    except ENGINE_FAILURES as problem:
        return Swept(left=(f"dead runs could not be looked for: {engine_words(problem)}",))


def engine_words(problem: BaseException) -> str:
    """Return the engine's own reason, in one line."""
    text = getattr(problem, "explanation", None) or str(problem) or type(problem).__name__
    return str(text).splitlines()[0][:300]


def runs(client: Any) -> Mapping[str, str]:
    """Return run -> owner for all runs that have objects in the engine.  Raises ENGINE_FAILURES."""
    return {
        kept[RUN_LABEL]: kept.get(OWNER_LABEL, "")
        for kept in (thing.get("Labels") or {} for thing in _everything(client))
        if RUN_LABEL in kept
    }


def _everything(client: Any) -> Iterator[Mapping[str, Any]]:
    ours = {"label": RUN_LABEL}
    yield from client.api.containers(all=True, filters=ours)
    yield from client.api.networks(filters=ours)
    yield from client.api.volumes(filters=ours)["Volumes"] or []


def _remove_container(api: Any, container: Mapping[str, Any]) -> str:
    """Remove a container.  Return why the engine refuses, or ""."""
    if container["State"] == "paused":
        _refusal(partial(api.unpause, container["Id"]))  # a paused container cannot be killed
    return _refusal(partial(api.remove_container, container["Id"], force=True, v=True))


def _remove_network(api: Any, network: str) -> str:
    """Remove a network.  If the engine refuses, disconnect the endpoints that it still lists, and return the reason."""

    def disconnect_all() -> None:
        for endpoint in (api.inspect_network(network).get("Containers") or {}).values():
            api.disconnect_container_from_network(endpoint["Name"], network, force=True)

    if words := _refusal(partial(api.remove_network, network)):
        _refusal(disconnect_all)
    return words


def _refusal(request: Callable[[], object]) -> str:
    """Make a request.  Return why the engine refuses it; "" if it does not, or if the object is already gone."""
    try:
        request()
    except ENGINE_FAILURES as problem:
        if not (isinstance(problem, APIError) and problem.status_code in _ALREADY):
            return engine_words(problem)
    return ""


def _container_name(container: Mapping[str, Any]) -> str:
    return str((container.get("Names") or [container["Id"]])[0]).lstrip("/")


def _sentence(refused: Mapping[str, str]) -> str:
    thing, words = next(iter(refused.items()))
    more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
    return (
        f"{thing}{more} cannot be removed: {words}.  This does not disturb other runs.  The next run, or "
        "`python -m harness clean-up`, tries again; if Docker still refuses, restart Docker."
    )


# ---- containers that make an image ---------------------------------------------------------------------------------


@contextlib.contextmanager
def scratch_container(client: Any, image: str, argv: Sequence[str], doing: str, **host: Any) -> Iterator[str]:
    """Create a container without starting it, yield its id, and remove it afterwards.

    doing: purpose of the container, as a verb phrase for the message of an error
    host: options of the engine; by default the container has neither network nor capabilities
    Raises BackendUnavailable with the engine's error message."""
    run_id = f"image-{os.getpid()}-{time.monotonic_ns()}"
    reaper = Reaper("harness.backends.docker_engine:reap", {"run_id": run_id})
    options = client.api.create_host_config(**(host or {"network_mode": "none", "cap_drop": ["ALL"]}))
    try:
        made = client.api.create_container(
            image,
            list(argv),
            entrypoint=[""],  # overrides the image's entrypoint; a commit keeps the container's
            user="0",
            labels=labels(run_id, current_owner()),
            host_config=options,
        )
        yield str(made["Id"])
    except APIError as error:
        raise BackendUnavailable(f"Docker could not {doing}: {error.explanation}") from error
    finally:
        remove_run(client, run_id)
        reaper.dismiss()


def run_to_end(client: Any, container: str, failed: str, limit_s: float) -> None:
    """Start a container and wait for its end.  Raises BackendUnavailable if it fails or runs longer than `limit_s`."""
    client.api.start(container)
    try:
        status = client.api.wait(container, timeout=limit_s)["StatusCode"]
    except requests.RequestException as late:
        raise BackendUnavailable(f"{failed}: it did not end within {limit_s:g} s") from late
    if status != 0:
        words = client.api.logs(container, tail=3).decode(errors="replace").strip()
        raise BackendUnavailable(f"{failed} (status {status}): {words}")


def commit(client: Any, container: str, tag: str, *changes: str) -> None:
    """Make an image from a container.  Set IMAGE_LABEL, and clear the labels of the container's run."""
    repository, _, version = tag.partition(":")
    kind = repository.removeprefix("krucible-")
    unlabel = f"LABEL {IMAGE_LABEL}={kind} {RUN_LABEL}= {OWNER_LABEL}="
    client.api.commit(container, repository, version, changes=[*changes, unlabel])


NODE_FOLDER = "/var/krucible"
"""Folder of the node's files, on a volume: on a container's overlay file system every fsync and every trace row would
cost more."""
_ANY_FILE = ("CHOWN", "DAC_OVERRIDE", "FOWNER")
"""Capabilities of the FUSE daemon.  The kernel checks permissions on the mount, and the daemon then opens the real file
regardless of its mode."""
_SYSTEM_AS_ANOTHER_USER = ("KILL", "SETGID", "SETUID", "SYS_PTRACE")
"""Capabilities that the agent, as root, needs for processes of another user.  SYS_PTRACE lets it read which program a
process runs."""
AGENT = ("python3", "-m", "harness.agent")
_HEADER = struct.Struct("!BxxxI")
_STDERR = 2


@dataclass(frozen=True, slots=True)
class ContainerPlan:
    """Container to create.

    network: name of a network, or "host"
    address: address of the container on that network, or "" """

    name: str
    hostname: str
    image: str
    network: str
    address: str
    labels: Mapping[str, str]
    capabilities: tuple[str, ...] = ()
    with_volume: bool = True
    disk: bool = False
    """True if the agent puts the data folder under FUSE, which needs a device and the right to mount."""
    needs: Needs = field(default_factory=Needs)
    command: tuple[str, ...] = AGENT
    linger_s: float = 0.0
    """Seconds that the agent stays alive after its stream has ended: see `harness.agent.process.LINGER`."""


@dataclass(slots=True)
class AttachedContainer:
    """The agent's stdin and stdout as asyncio streams, and the end of its output on stderr."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    stderr: deque[bytes]
    kept: Any = field(repr=False, default=None)  # owns the socket: must not be garbage-collected before it is closed

    def words(self) -> str:
        return b"".join(self.stderr).decode(errors="replace")


def create(client: Any, plan: ContainerPlan) -> str:
    """Create a container without starting it, and return its id.  Raises docker.errors.APIError."""
    api = client.api
    on_network = plan.network != "host"
    mounts = [Mount(NODE_FOLDER, None, type="volume", labels=dict(plan.labels))] if plan.with_volume else []
    networking = api.create_networking_config(
        {plan.network: api.create_endpoint_config(ipv4_address=plan.address)} if on_network else {}
    )
    made = api.create_container(
        plan.image,
        entrypoint=list(plan.command),
        name=plan.name,
        hostname=plan.hostname if on_network else None,
        labels=dict(plan.labels),
        environment={LINGER: f"{plan.linger_s:g}"},
        user="0" if plan.disk else plan.needs.user or "0",
        detach=False,  # sets StdinOnce
        stdin_open=True,
        networking_config=networking if on_network else None,
        host_config=api.create_host_config(
            auto_remove=True,
            network_mode=plan.network,
            cap_drop=["ALL"],
            cap_add=[*plan.capabilities, *_for_disk(plan)],
            devices=["/dev/fuse:/dev/fuse:rwm"] if plan.disk else [],
            security_opt=["no-new-privileges", *(_unconfined(client) if plan.disk else ())],
            log_config=LogConfig(type="none"),  # the agent's frames must not be logged
            mounts=mounts,
            shm_size=plan.needs.shared_memory_bytes or None,
            ulimits=[Ulimit(name="nofile", soft=files, hard=files)] if (files := plan.needs.open_files) else None,
        ),
    )
    return str(made["Id"])


def _for_disk(plan: ContainerPlan) -> tuple[str, ...]:
    if not plan.disk:
        return ()
    return ("SYS_ADMIN", *_ANY_FILE, *(_SYSTEM_AS_ANOTHER_USER if plan.needs.user else ()))


def _unconfined(client: Any) -> list[str]:
    """Return the option that turns off AppArmor, whose profile for containers forbids every mount.  Return nothing for
    an engine without AppArmor, which refuses the option."""
    options = client.api.info().get("SecurityOptions") or []
    return ["apparmor=unconfined"] if any("apparmor" in str(option) for option in options) else []


def open_socket(client: Any, container: str) -> Any:
    """Attach to a container and return docker's file around the socket.  Call it before the container starts, or its
    first output is lost."""
    attached = client.api.attach_socket(container, params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1})
    if isinstance(getattr(attached, "_sock", attached), ssl.SSLSocket):
        raise BackendUnavailable("A Docker engine behind TLS cannot be attached to: reach it by ssh or a local socket.")
    return attached


async def stream(attached: Any) -> AttachedContainer:
    """Return asyncio streams over the socket that `open_socket` returned."""
    both, writer = await asyncio.open_connection(sock=attached._sock, limit=1 << 20)
    reader, stderr = asyncio.StreamReader(limit=1 << 20), deque[bytes](maxlen=50)
    parting = asyncio.ensure_future(_part(both, reader, stderr))
    return AttachedContainer(reader, writer, stderr, (attached, parting))


async def _part(both: asyncio.StreamReader, stdout: asyncio.StreamReader, stderr: deque[bytes]) -> None:
    """Split the engine's stream into stdout and stderr.  Each piece has an eight-byte header: stream, length."""
    try:
        while True:
            which, size = _HEADER.unpack(await both.readexactly(_HEADER.size))
            piece = await both.readexactly(size)
            (stderr.append if which == _STDERR else stdout.feed_data)(piece)
    except (asyncio.IncompleteReadError, OSError):
        stdout.feed_eof()


RANGE = ipaddress.IPv4Network("198.18.0.0/15")


REFUSALS_MAX = 5
"""Maximum number of attempts that the engine refuses for another reason than that the subnet is taken."""


def create_network(client: Any, name: str, labels: Mapping[str, str]) -> ipaddress.IPv4Network:
    """Create a bridge network on a free subnet, and return the subnet.  Subnets are tried in random order, because
    other runs may do the same at the same time.

    Raises BackendUnavailable with the engine's error message.
    """
    subnets = list(RANGE.subnets(new_prefix=24))
    random.shuffle(subnets)
    refusals = 0
    for subnet in subnets:
        pool = IPAMPool(subnet=str(subnet), gateway=str(subnet[1]))
        try:
            client.api.create_network(
                name,
                driver="bridge",
                ipam=IPAMConfig(pool_configs=[pool]),
                internal=True,
                labels=dict(labels),
                check_duplicate=True,
            )
        except APIError as error:
            if "overlap" in str(error.explanation).lower():
                continue
            refusals += 1
            if refusals >= REFUSALS_MAX:
                raise BackendUnavailable(
                    f"Docker makes no network ({error.explanation}): restart Docker, or choose --backend namespaces."
                ) from error
        else:
            return subnet
    raise BackendUnavailable(f"Every subnet of {RANGE} is taken: remove unused networks with `docker network prune`.")
