"""NATS with JetStream, built from its source in the Go module proxy: streams and buckets with a replica on each server."""

import nats
from nats.js.api import ConsumerConfig
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError

from krucible import Artefact, Client, Needs, System

VERSION = "2.15.2"
MODULE = "github.com/nats-io/nats-server/v2"
CONFIGURATION = """
server_name: {node.name}
listen: {node.address}:4222
jetstream {{ store_dir: {node.data_dir}/jetstream, {sync} }}
cluster {{ name: krucible, listen: {node.address}:6222, routes: [{routes}] }}
"""


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


class BucketClient(StreamClient):
    """A set is one value of a bucket.  Each update names the revision that it replaces, so no update may be lost."""

    refused = (KeyWrongLastSequenceError,)

    async def create(self, key=None):
        await self.stream.create_key_value(bucket=key, replicas=len(self.servers))

    async def add(self, key, value):
        self.harmless = True
        bucket = await self.stream.key_value(key)
        try:
            held = await bucket.get("set")
        except KeyNotFoundError:
            text, revision = str(value), 0
        else:
            text, revision = f"{held.value.decode()} {value}", held.revision
        self.harmless = False
        await bucket.update("set", text.encode(), last=revision)

    async def members(self, key):
        held = await (await self.stream.key_value(key)).get("set")
        return sorted(map(int, held.value.split()))


class Nats(System):
    port = 4222
    client = StreamClient
    parameters = {"version": VERSION}
    unreachable_by = {"clock": "NATS is written in Go, which reads the clock without the C library"}
    sync = ""

    @property
    def needs(self):
        version = self.settings.get("version", VERSION)
        commands = (("go", "get", f"{MODULE}@v{version}"), ("go", "build", "-o", "nats-server", MODULE))
        made = Artefact(f"NATS {version}", commands, "nats-server", {"go.mod": "module krucible/nats\n\ngo 1.24\n"})
        return Needs(wheels=("nats-py>=2.9",), artefacts={"nats-server": made})

    async def start(self, node, nodes):
        routes = ", ".join(f"nats://{other.address}:6222" for other in nodes)
        await node.write("nats.conf", CONFIGURATION, routes=routes, sync=self.sync)
        return ["./nats-server", "-c", "nats.conf"]


class SyncAlways(Nats):
    """NATS with JetStream, and sync_interval: always."""

    sync = "sync_interval: always"


class Buckets(Nats):
    """NATS with JetStream: buckets of keys and values."""

    client = BucketClient


class DamagedMessages(SyncAlways):
    """NATS with sync_interval: always, for faults that corrupt files of messages: each message has a checksum."""

    notices_damage = {"flip": "*.blk"}


class DamagedSnapshots(SyncAlways):
    """NATS with sync_interval: always, for faults that corrupt snapshots of its Raft groups: each has a checksum."""

    notices_damage = {"flip": "snap.*"}
