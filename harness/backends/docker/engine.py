"""The connection to the Docker engine, and the labels by which everything of ours is found again.

Every container, network and volume carries the run it belongs to and the process that owns the run
(`harness.backends.leftovers`).  What is removed is found by these labels and by nothing else.

Removes what a run made.  The end of a run, the reaper and the sweep use it; labels alone say what belongs to a run.

Nothing here raises for what the engine refuses.  Engines lose count now and then: Docker 20.10 may keep a network "with
active endpoints" although its container is gone, and no request removes that network before the engine restarts.  Such
a network occupies one subnet and does no other harm.  So the caller gets a sentence, and goes on.

Containers are removed one after another.  Two that leave one network at the same moment can block an engine before
Docker 23 for ever: one holds the lock of the network and waits for that of all networks, the other the reverse
(moby pull request 42545).  The agents of a killed harness exit one after another, too (`backend`).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import docker
import requests
from docker.errors import APIError, DockerException

from harness.agent.network import Table, without
from harness.backends.backend import BackendUnavailable
from harness.backends.docker import nodes
from harness.backends.leftovers import Reaper, Swept, current_owner, sweep

RUN_LABEL = "krucible.run"
OWNER_LABEL = "krucible.owner"
IMAGE_LABEL = "krucible.image"

REQUEST_TIMEOUT_S = 60
"""Longest wait for one answer of the engine (a stream of build output is many answers)."""


def connect(timeout_s: float = REQUEST_TIMEOUT_S) -> Any:
    """A `docker.DockerClient` that has answered a ping.  Raises BackendUnavailable with one sentence otherwise."""
    try:
        client = docker.from_env(timeout=timeout_s, max_pool_size=20)
        client.ping()
    except (DockerException, OSError) as error:
        raise BackendUnavailable(_why_unavailable(error)) from error
    return client


def why_unavailable() -> str | None:
    """None if the engine answers, else one sentence."""
    try:
        connect(timeout_s=5.0).close()
    except BackendUnavailable as unavailable:
        return str(unavailable)
    return None


def labels(run_id: str, owner: str) -> dict[str, str]:
    return {RUN_LABEL: run_id, OWNER_LABEL: owner}


def of_run(run_id: str) -> dict[str, Any]:
    """The engine's filter for everything that carries this run's label."""
    return {"label": f"{RUN_LABEL}={run_id}"}


def _why_unavailable(error: BaseException) -> str:
    causes = _chain(error)
    words = " ".join(str(cause) for cause in causes)
    if any(isinstance(cause, PermissionError) for cause in causes) or "Permission denied" in words:
        return (
            "Docker refuses this user: add it to the `docker` group (or run as root), or choose --backend namespaces."
        )
    if any(isinstance(cause, FileNotFoundError) for cause in causes) or "No such file" in words:
        what = "its socket is missing" if Path("/usr/bin/docker").exists() else "it is not installed"
        return f"Docker does not run here ({what}): start it, set DOCKER_HOST, or choose --backend namespaces."
    return f"Docker does not answer ({str(error).splitlines()[0][:200]}): start it, or choose --backend namespaces."


def _chain(error: BaseException) -> list[BaseException]:
    """The error with all its causes, those hidden in `args` too (urllib3 wraps there)."""
    found: list[BaseException] = []
    pending: list[BaseException] = [error]
    while pending and len(found) < 20:
        cause = pending.pop()
        if cause in found:
            continue
        found.append(cause)
        hidden = (cause.__cause__, cause.__context__, getattr(cause, "reason", None), *cause.args)
        pending += [inner for inner in hidden if isinstance(inner, BaseException)]
    return found


REMOVE_S_MAX = 30.0
STUCK_S = 5.0
"""A network that still has endpoints so long after its last container is stuck: waiting longer does not help."""

ENGINE_FAILURES = (DockerException, requests.RequestException, OSError)
"""Everything that a request to the engine may raise (APIError is a DockerException)."""

_ALREADY = (404, 409)
"""Status codes: it no longer exists, or another process is removing it now."""


@dataclass(slots=True)
class Removal:
    """Record of what one attempt met.  found: how many things there were.  only_networks: nothing else was among them.

    refused: thing -> the engine's own words.
    """

    found: int = 0
    only_networks: bool = True
    refused: dict[str, str] = field(default_factory=dict)


def remove_once(client: Any, run_id: str) -> Removal:
    """Try once to remove everything of a run; `found` is 0 if the run is gone.

    What the engine refuses now (a network whose last container is still leaving) is left for the next call.  Raises
    ENGINE_FAILURES only where the engine cannot say what there is.
    """
    api, removal = client.api, Removal()
    containers_there = api.containers(all=True, filters=of_run(run_id))
    for container in containers_there:
        _note(removal, f"container {_container_name(container)}", _remove_container(api, container))
    removal.only_networks = not containers_there
    for network in api.networks(filters=of_run(run_id)):
        _note(removal, f"network {network['Name']}", _remove_network(api, network["Id"]))
    for volume in api.volumes(filters=of_run(run_id))["Volumes"] or []:
        removal.only_networks = False
        with _refusal(*_ALREADY) as words:
            api.remove_volume(volume["Name"], force=True)
        _note(removal, f"volume {volume['Name']}", words)
    return removal


def remove_run(client: Any, run_id: str, limit_s: float = REMOVE_S_MAX, stuck_s: float = STUCK_S) -> str:
    """Remove everything of a run.  Returns "" once it is gone, else one sentence: what is left, why, and what to do.

    limit_s: give up then.  stuck_s: give up then where only networks are left.  Never raises for the engine.
    """
    began = stuck_since = time.monotonic()
    while True:
        try:
            removal = remove_once(client, run_id)
        except ENGINE_FAILURES as problem:
            removal = Removal(found=1, only_networks=False, refused={f"run {run_id}": engine_words(problem)})
        if not removal.found:
            return ""
        now = time.monotonic()
        if not removal.only_networks:
            stuck_since = now
        if removal.refused and (now - stuck_since > stuck_s or now - began > limit_s):
            return _sentence(removal)
        if now - began > 2 * limit_s:
            return f"run {run_id}: {removal.found} things are still there after {now - began:.0f} s"
        time.sleep(0.05)


def remove_containers(client: Any, run_id: str) -> None:
    """Remove the containers of a run and keep its network.  Raises ENGINE_FAILURES."""
    deadline = time.monotonic() + REMOVE_S_MAX
    while there := client.api.containers(all=True, filters=of_run(run_id)):
        for container in there:
            if (words := _remove_container(client.api, container)) and time.monotonic() > deadline:
                raise DockerException(f"container {_container_name(container)} cannot be removed: {words[0]}")
        time.sleep(0.05)


def delete_table(client: Any, table: Table, run_id: str) -> str:
    """Delete the table through a container that does nothing else; for when the run's own helper is gone.

    Any node image will do; without one no helper ever ran.  Returns "" once the table is gone, else one sentence.
    """
    try:
        return _delete_table(client, table, run_id)
    except ENGINE_FAILURES as problem:
        return f"the rules {' '.join(table)} could not be deleted: {engine_words(problem)}"


def _delete_table(client: Any, table: Table, run_id: str) -> str:
    images = client.api.images(filters={"label": f"{IMAGE_LABEL}=node"})
    if not images:
        return ""
    cleaner = f"{run_id}-cleaner"
    remove_run(client, cleaner)  # of an attempt that an engine broke off
    plan = nodes.ContainerPlan(
        name=f"krucible-{cleaner}",
        hostname="",
        image=images[0]["Id"],
        network="host",
        address="",
        labels=labels(cleaner, current_owner()),
        capabilities=("NET_ADMIN",),
        with_volume=False,
        command=("nft", without(table)),
    )
    container = nodes.create(client, plan)
    client.api.start(container)
    with _refusal(404):  # it ended, and the engine removed it, before this request
        client.api.wait(container, timeout=20)
    return remove_run(client, cleaner)


def reap(run_id: str, family: str, table: str) -> Callable[[], int]:
    """Return what the reaper calls over and over: removes what it finds, returns how much; the table goes last."""
    client = connect()
    pending = [(family, table)]

    def once() -> int:
        found = remove_once(client, run_id).found
        if not found and pending:
            if words := delete_table(client, pending[0], run_id):
                raise DockerException(words)
            pending.clear()
        return found

    return once


def reap_image_build(run_id: str) -> Callable[[], int]:
    """Do the same for a build, which has no table."""
    client = connect()
    return lambda: remove_once(client, run_id).found


def sweep_dead(client: Any, stuck_s: float = STUCK_S) -> Swept:
    """Remove what runs whose owner is certainly dead left in the engine.  Never raises for the engine."""
    try:
        return sweep(runs(client), lambda run_id: remove_run(client, run_id, stuck_s, stuck_s))
    except ENGINE_FAILURES as problem:
        return Swept(left=(f"dead runs could not be looked for: {engine_words(problem)}",))


def engine_words(problem: BaseException) -> str:
    """The engine's own reason, in one line."""
    text = getattr(problem, "explanation", None) or str(problem) or type(problem).__name__
    return str(text).splitlines()[0][:300]


def runs(client: Any) -> Mapping[str, str]:
    """Run -> owner, of everything of ours that the engine holds.  Raises ENGINE_FAILURES."""
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


def _remove_container(api: Any, container: Mapping[str, Any]) -> list[str]:
    """The engine's refusal, if there is one."""
    with _refusal(*_ALREADY):
        if container["State"] == "paused":
            api.unpause(container["Id"])  # a frozen container cannot be killed
    with _refusal(*_ALREADY) as words:
        api.remove_container(container["Id"], force=True, v=True)
    return words


def _remove_network(api: Any, network: str) -> list[str]:
    """Remove a network, with the endpoints that the engine still counts on it; the engine's refusal if there is one."""
    with _refusal(*_ALREADY) as words:
        api.remove_network(network)
    if words:
        with _refusal(*_ALREADY):
            for endpoint in (api.inspect_network(network).get("Containers") or {}).values():
                api.disconnect_container_from_network(endpoint["Name"], network, force=True)
    return words


@contextlib.contextmanager
def _refusal(*harmless: int) -> Iterator[list[str]]:
    """Catches what the engine refuses; the list then holds its words, unless the status is a harmless one."""
    words: list[str] = []
    try:
        yield words
    except ENGINE_FAILURES as problem:
        if not (isinstance(problem, APIError) and problem.status_code in harmless):
            words.append(engine_words(problem))


def _note(removal: Removal, thing: str, refusal: Sequence[str]) -> None:
    removal.found += 1
    if refusal:
        removal.refused[thing] = refusal[0]


def _container_name(container: Mapping[str, Any]) -> str:
    return str((container.get("Names") or [container["Id"]])[0]).lstrip("/")


def _sentence(removal: Removal) -> str:
    thing, words = next(iter(removal.refused.items()))
    more = f" (and {len(removal.refused) - 1} more)" if len(removal.refused) > 1 else ""
    return (
        f"{thing}{more} cannot be removed: {words}.  It does not disturb other runs.  The next run, or "
        "`python -m harness clean-up`, tries again; if Docker still refuses, restart Docker."
    )


# ---- containers that make an image ---------------------------------------------------------------------------------


@contextlib.contextmanager
def scratch_container(client: Any, image: str, argv: Sequence[str], doing: str, **host: Any) -> Iterator[str]:
    """Make a container, not started, and remove it afterwards.

    doing: what it is for, in words.  host: options of the engine; by default it has neither network nor capabilities.
    Raises BackendUnavailable with the engine's own words."""
    run_id = f"image-{os.getpid()}-{time.monotonic_ns()}"
    reaper = Reaper("harness.backends.docker.engine:reap_image_build", {"run_id": run_id})
    options = client.api.create_host_config(**(host or {"network_mode": "none", "cap_drop": ["ALL"]}))
    try:
        made = client.api.create_container(
            image,
            list(argv),
            entrypoint=[""],  # overrides that of the image; a commit keeps the one of its container
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
    """Start a container and wait for its end.  Raises BackendUnavailable where it fails or takes longer."""
    client.api.start(container)
    try:
        status = client.api.wait(container, timeout=limit_s)["StatusCode"]
    except requests.RequestException as late:
        raise BackendUnavailable(f"{failed}: it did not end within {limit_s:g} s") from late
    if status != 0:
        words = client.api.logs(container, tail=3).decode(errors="replace").strip()
        raise BackendUnavailable(f"{failed} (status {status}): {words}")


def commit(client: Any, container: str, tag: str, *changes: str) -> None:
    """Make an image of a container.  It carries the label of images and none of the container's run."""
    repository, _, version = tag.partition(":")
    kind = repository.removeprefix("krucible-")
    unlabel = f"LABEL {IMAGE_LABEL}={kind} {RUN_LABEL}= {OWNER_LABEL}="
    client.api.commit(container, repository, version, changes=[*changes, unlabel])
