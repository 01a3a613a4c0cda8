"""The node image: made once, found again by name, and removed only when no run uses it any more."""

from __future__ import annotations

import io
import os
import tarfile
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from docker_things import needs_docker

from harness.backends import docker_image as image
from harness.backends.builds import Interrupted
from harness.backends.docker_engine import connect

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
