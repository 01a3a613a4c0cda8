"""The node image, made once and removed once no run uses it; and a system's own image, even one without a C library."""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
import threading
import time
from collections.abc import Iterator
from typing import Any

import docker
import pytest
from docker_things import left_of, needs_docker

from harness.backends import docker_image as image
from harness.backends.backend import BackendUnavailable, ClusterSpec
from harness.backends.builds import Interrupted
from harness.backends.docker_backend import DockerBackend
from harness.backends.docker_engine import connect
from nemesis.cluster import CLOCK, DISK
from system_under_test.subject import Needs

pytestmark = needs_docker


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    connected = connect()
    yield connected
    connected.close()


def an_image(client: Any, name: str, *, used_s_ago: float) -> str:
    """An empty image of a kind of its own, which no run removes that builds a node image meanwhile."""
    kind = f"test{os.getpid()}"
    tag = f"krucible-{kind}:{name}"
    empty = io.BytesIO()
    tarfile.open(fileobj=empty, mode="w").close()
    repository, _, version = tag.partition(":")
    changes = [f"LABEL krucible.image={kind} name={name}"]
    client.api.import_image_from_data(empty.getvalue(), repository=repository, tag=version, changes=changes)
    image.mark_used(tag)
    os.utime(image._mark(tag), (time.time() - used_s_ago,) * 2)
    return tag


def test_what_is_there_is_not_made_again(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    code = image.node_code()
    monkeypatch.setattr(image, "node_code", lambda: code)  # even if an editor changes it at this moment
    tag = image.ensure_image(print, client=client)
    monkeypatch.setattr(image, "one_builder", lambda *_: pytest.fail("it is built again"))
    assert image.ensure_image(print, client=client) == tag
    labels = client.api.inspect_image(tag)["Config"]["Labels"]
    assert labels["krucible.image"] == "node"
    assert labels["krucible.run"] == ""  # objects used for the build must not look as if they belonged to a run


def test_the_name_depends_on_every_file_of_the_nodes(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    code = image.node_code()
    tags: list[str] = []
    monkeypatch.setattr(image, "has_image", lambda client, tag: tags.append(tag) or True)
    for changed in ({}, {"harness/agent/new.py": b""}, {"harness/agent/process.py": b"# edited"}):
        monkeypatch.setattr(image, "node_code", lambda changed=changed: code | changed)
        image.ensure_image(print, client=client)
    assert len(set(tags)) == 3


def test_only_images_unused_for_an_hour_are_removed(client: Any) -> None:
    old = an_image(client, "old", used_s_ago=image.UNUSED_S + 10)
    fresh = an_image(client, "fresh", used_s_ago=image.UNUSED_S - 60)
    kept = an_image(client, "kept", used_s_ago=image.UNUSED_S + 10)
    try:
        image.remove_unused(client, keep=kept)
        assert [image.has_image(client, tag) for tag in (old, fresh, kept)] == [False, True, True]
    finally:
        for tag in (fresh, kept):
            client.api.remove_image(tag)
            image._mark(tag).unlink()
        image._mark(old).unlink(missing_ok=True)


def test_one_builder_at_a_time_and_waiting_can_be_interrupted() -> None:
    reports: list[str] = []
    stop = threading.Event()

    def say_and_stop(words: str) -> None:
        reports.append(words)
        stop.set()

    with image.one_builder(print, threading.Event()), pytest.raises(Interrupted), image.one_builder(say_and_stop, stop):
        pass
    assert reports == ["image: another process builds it; waiting"]
    with image.one_builder(reports.append, threading.Event()):
        pass


USER, NUMBER = "app", 4711
IMAGE = f"krucible-test-empty:{os.getpid()}"


@pytest.fixture(scope="module")
def empty_image() -> Iterator[str]:
    """It holds a list of users and nothing else, and its own command cannot be run."""
    passwd = f"root:x:0:0:root:/root:/none\n{USER}:x:{NUMBER}:{NUMBER}::/:/none\n".encode()
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        entry = tarfile.TarInfo("etc/passwd")
        entry.size = len(passwd)
        tar.addfile(entry, io.BytesIO(passwd))
    client = docker.from_env()
    repository, _, version = IMAGE.partition(":")
    changes = [
        'ENTRYPOINT ["/there/is/none"]',
        f"USER {USER}",
        "HEALTHCHECK CMD /there/is/none",
        "ENV LD_PRELOAD=/none",
    ]
    client.api.import_image_from_data(archive.getvalue(), repository=repository, tag=version, changes=changes)
    before = set(own_images(client))
    yield IMAGE
    for tag in set(own_images(client)) - before:
        client.api.remove_image(tag)
    client.api.remove_image(IMAGE)
    client.close()


def own_images(client: docker.DockerClient) -> list[str]:
    return [tag for image in client.images.list() for tag in image.tags if tag.startswith("krucible-own:")]


SCRIPT = """set -e; cd "$1"
mkdir kept; chmod 700 kept; echo 1 > kept/fsynced; sync kept/fsynced kept; echo 2 > kept/not-fsynced
id -u; stat -c %u kept server.conf | tr '\\n' ' ' 2>/dev/null || true"""


async def in_a_cluster(needs: Needs, *wanted: str) -> dict[str, object]:
    """What a server and a client node of such a cluster are like, before and after a power loss."""
    run_id = f"test-{os.getpid()}-own"
    backend = DockerBackend(ClusterSpec(run_id, ("n1",), ("c1",), 1, frozenset(wanted), needs=needs))
    found: dict[str, object] = {}
    try:
        await backend.create(print)
        node, client = backend.node("n1"), backend.client_host("c1")
        found["python"] = (await node.run([*node.python, "-c", "import ssl, kio; print(1 + 1)"], timeout_s=60.0)).stdout
        asking = "import os; print(os.environ['PATH'], *sorted(os.listdir('/')))"
        found["root"] = (await node.run([*node.python, "-c", asking], timeout_s=60.0)).stdout.decode().split()
        own = await node.run(["bash", "-c", f'chown {USER} "$1"', "bash", node.data_dir], timeout_s=60.0)
        assert own.status == 0, own.stderr
        await node.write(f"{node.data_dir}/server.conf", b"port 1")
        as_user = ["setpriv", f"--reuid={USER}", f"--regid={NUMBER}", "--clear-groups", "bash", "-c", SCRIPT, "bash"]
        wrote = await node.run([*as_user, node.data_dir], timeout_s=60.0)
        found["user"] = wrote.stdout.decode().split()[0] if wrote.stdout else wrote.stderr.decode()
        await backend.lose_power("n1", "lose", 1)
        listing = ["bash", "-c", 'cd "$1"; stat -c "%u %n %s" server.conf kept/*', "bash", node.data_dir]
        found["left"] = (await node.run(listing, timeout_s=60.0)).stdout.decode().splitlines()
        found["clock"] = backend.lacks(CLOCK)
        assert client is not None
        return found
    finally:
        await backend.destroy()
        assert left_of(run_id) == []


def test_the_agent_brings_all_that_it_needs_into_an_empty_image(empty_image: str) -> None:
    found = asyncio.run(in_a_cluster(Needs(image=empty_image, user=USER), DISK, CLOCK))
    assert found["python"] == b"2\n"
    path, *folders = found["root"]  # type: ignore[misc]
    assert path.endswith(":/opt/krucible/runtime/bin")
    assert "usr" not in folders and "lib" not in folders, "nothing of the node image but the agent's own folder"
    assert found["user"] == str(NUMBER)
    assert found["left"] == [f"{NUMBER} server.conf 6", f"{NUMBER} kept/fsynced 2"]
    assert "C library of the image" in str(found["clock"])


def test_a_user_that_the_image_has_not_is_named(empty_image: str) -> None:
    with pytest.raises(BackendUnavailable, match=f"The image {IMAGE} has no user nobody-here"):
        asyncio.run(in_a_cluster(Needs(image=empty_image, user="nobody-here")))


def test_an_image_that_is_not_there_is_named() -> None:
    with pytest.raises(BackendUnavailable, match="krucible-test-none:1; it is not here and cannot be pulled"):
        asyncio.run(in_a_cluster(Needs(image="krucible-test-none:1")))
