"""The engine cannot be reached for a while: a proxy in front of its socket is cut, and comes back later."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

import pytest
from docker_things import left_of, needs_docker, processes_of, seconds_until

from harness.backends.backend import ClusterSpec
from harness.backends.docker_backend import DockerBackend
from system_under_test.subject import NodeGone

pytestmark = needs_docker
ENGINE = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")


class Proxy:
    """A socket that leads to the engine while `open` holds."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._server: asyncio.Server | None = None
        self._connected: set[asyncio.StreamWriter] = set()

    async def open(self) -> None:
        self._server = await asyncio.start_unix_server(self._carry, self.place)

    async def cut(self) -> None:
        """No new connection is made, and those that exist end."""
        assert self._server is not None
        self._server.close()
        self.place.unlink(missing_ok=True)
        for writer in list(self._connected):
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_unix_connection(ENGINE.removeprefix("unix://"))
        self._connected |= {writer, back}
        with contextlib.suppress(OSError):
            await asyncio.gather(self._pump(reader, back), self._pump(there, writer))
        for end in (writer, back):
            end.close()
            self._connected.discard(end)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(1 << 16):
            sink.write(data)
            await sink.drain()
        if sink.can_write_eof():
            sink.write_eof()


@pytest.mark.skipif(not ENGINE.startswith("unix://"), reason="needs an engine behind a local socket")
async def test_nodes_end_with_the_connection_and_the_reaper_removes_them_when_the_engine_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy, run_id = Proxy(tmp_path / "engine.sock"), f"cut-engine-{os.getpid()}"
    await proxy.open()
    monkeypatch.setenv("DOCKER_HOST", f"unix://{proxy.place}")
    backend = DockerBackend(ClusterSpec(run_id, ("n1", "n2"), ("c1",), seed=1))
    try:
        await backend.create(print)
        await proxy.cut()
        with pytest.raises(NodeGone):
            while True:
                await backend.state("n1")
        with pytest.raises(NodeGone):
            await backend.cut({("n1", "n2")})
    finally:
        monkeypatch.setattr("harness.backends.docker_engine.REMOVE_S_MAX", 1.0)
        await backend.destroy()
    assert backend.leftovers, "what could not be removed is reported"
    await proxy.open()
    await asyncio.to_thread(seconds_until, lambda: not left_of(run_id))
    await asyncio.to_thread(seconds_until, lambda: not processes_of(run_id))
    await proxy.cut()
