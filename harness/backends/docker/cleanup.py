"""Removing what a run made, found by its label alone: for the end of a run, for the reaper, and for the sweep."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from docker.errors import APIError

from harness.agent.rules import Table, without
from harness.backends.docker import containers
from harness.backends.docker.engine import IMAGE_LABEL, OWNER_LABEL, RUN_LABEL, connect, labels, of_run
from harness.backends.owner import current_owner
from harness.backends.sweep import sweep

_ALREADY = (404, 409)
"""Not there any more; or somebody else is removing it at this moment."""


def remove_once(client: Any, run_id: str) -> int:
    """Remove all that is found of a run now; returns how much that was (0: the run is gone).

    What cannot be removed yet (a network whose last container is still leaving) counts as found and is left for the
    next call.
    """
    api, found = client.api, 0
    with ThreadPoolExecutor(8) as pool:
        there = api.containers(all=True, filters=of_run(run_id))
        found += len(there)
        list(pool.map(lambda container: _remove_container(api, container), there))
    for network in api.networks(filters=of_run(run_id)):
        found += 1
        with _tolerating(*_ALREADY, 403):  # 403: it still has endpoints
            api.remove_network(network["Id"])
    for volume in api.volumes(filters=of_run(run_id))["Volumes"] or []:
        found += 1
        with _tolerating(*_ALREADY):
            api.remove_volume(volume["Name"], force=True)
    return found


def remove_run(client: Any, run_id: str, limit_s: float = 30.0) -> None:
    """Remove everything of a run.  Raises TimeoutError if something of it is still there after limit_s."""
    deadline = time.monotonic() + limit_s
    hindrance: APIError | None = None
    while True:
        try:
            if not remove_once(client, run_id):
                return
        except APIError as error:  # a busy engine refuses what it grants a moment later
            hindrance = error
        if time.monotonic() > deadline:
            raise TimeoutError(f"run {run_id} could not be removed within {limit_s:g} s") from hindrance
        time.sleep(0.05)


def delete_table(client: Any, table: Table, run_id: str) -> None:
    """Delete the table through a container that does nothing else; for when the run's own helper is gone.

    Any node image will do; without one no helper ever ran."""
    images = client.api.images(filters={"label": f"{IMAGE_LABEL}=node"})
    if not images:
        return
    plan = containers.Plan(
        name=f"krucible-{run_id}-cleaner",
        hostname="",
        image=images[0]["Id"],
        network="host",
        address="",
        labels=labels(f"{run_id}-cleaner", current_owner()),
        capabilities=("NET_ADMIN",),
        with_volume=False,
        command=("nft", without(table)),
    )
    container = containers.create(client, plan)
    client.api.start(container)
    with _tolerating(404):  # ended and removed before we asked
        client.api.wait(container, timeout=20)
    remove_run(client, f"{run_id}-cleaner")


def reap(run_id: str, family: str, table: str) -> Callable[[], int]:
    """What the reaper calls over and over: removes what it finds, returns how much; the table goes last."""
    client = connect()
    pending = [(family, table)]

    def once() -> int:
        found = remove_once(client, run_id)
        if not found and pending:
            delete_table(client, pending[0], run_id)
            pending.clear()
        return found

    return once


def reap_image_build(run_id: str) -> Callable[[], int]:
    """The same for a build, which has no table."""
    client = connect()
    return lambda: remove_once(client, run_id)


def sweep_dead(client: Any) -> list[str]:
    """Remove what runs whose owner is certainly dead left in the engine; which runs these were."""
    return sweep(runs(client), lambda run_id: remove_run(client, run_id))


def runs(client: Any) -> Mapping[str, str]:
    """Run -> owner, of everything of ours that the engine holds."""
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


def _remove_container(api: Any, container: Mapping[str, Any]) -> None:
    with _tolerating(*_ALREADY):
        if container["State"] == "paused":
            api.unpause(container["Id"])  # a frozen container cannot be killed
    with _tolerating(*_ALREADY):
        api.remove_container(container["Id"], force=True, v=True)


@contextlib.contextmanager
def _tolerating(*statuses: int) -> Iterator[None]:
    try:
        yield
    except APIError as error:
        if error.status_code not in statuses:
            raise
