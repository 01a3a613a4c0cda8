"""RabbitMQ 3.10 as Debian packages it: classic queues with a mirror on every node, and autoheal after a partition."""

import json

import pika

from krucible import Client, Needs, System

BIN = "/usr/lib/rabbitmq/bin"
NO_BUSY_WAIT = "+sbwt none +sbwtdcpu none +sbwtdio none"
EPMD = "until epmd -names > /dev/null; do sleep 0.1; done"
FIRST = "until (: < /dev/tcp/{}/5672) 2> /dev/null; do sleep 0.3; done"
CONFIGURATION = """
listeners.tcp.1 = {node.address}:5672
cluster_partition_handling = autoheal
cluster_formation.peer_discovery_backend = classic_config
{lines}"""
MIRRORED = {"ha-mode": "all", "ha-sync-mode": "automatic"}
EVERYTHING = {"configure": ".*", "write": ".*", "read": ".*"}
DEFINITIONS = {
    "vhosts": [{"name": "/"}],
    "users": [{"name": "k", "password": "k", "tags": ""}],
    "permissions": [{"user": "k", "vhost": "/", **EVERYTHING}],
    "policies": [
        {"vhost": "/", "name": "ha", "pattern": "", "apply-to": "queues", "priority": 0, "definition": MIRRORED}
    ],
}


class PublisherClient(Client):
    """A client that publishes with confirms, and consumes a queue's messages only to drain the queue."""

    arguments = None

    def open(self, server):
        credentials = pika.PlainCredentials("k", "k")
        parameters = pika.ConnectionParameters(
            server.host, server.port, credentials=credentials, connection_attempts=1, socket_timeout=2
        )
        connection = pika.BlockingConnection(parameters)
        self.persistent = pika.BasicProperties(delivery_mode=2)
        self.channel = connection.channel()
        self.channel.confirm_delivery()
        return connection

    def create(self, key=None):
        return self.channel.queue_declare(key, durable=True, arguments=self.arguments)

    def enqueue(self, key, value):
        self.channel.basic_publish("", key, str(value).encode(), self.persistent, mandatory=True)

    def dequeue(self, key):
        method, _, body = self.channel.basic_get(key, auto_ack=True)
        return int(body) if method else None

    def drain(self, key):
        values, method = [], None
        while (found := self.channel.basic_get(key))[0] is not None:
            method, _, body = found
            values.append(int(body))
        if method:  # acknowledge only now, so that the messages of an incomplete drain go back to the queue
            self.channel.basic_ack(method.delivery_tag, multiple=True)
        return values


class QuorumClient(PublisherClient):
    arguments = {"x-queue-type": "quorum"}


class RabbitMQ(System):
    port = 5672
    client = PublisherClient
    needs = Needs(debian=("rabbitmq-server",), wheels=("pika>=1.3",), user="rabbitmq")
    before = ":"

    async def start(self, node, nodes):
        lines = [f"cluster_formation.classic_config.nodes.{n.index + 1} = rabbit@{n.address}\n" for n in nodes]
        wait = EPMD
        if node.index == 0:  # other nodes join after this import: concurrent imports leave a node without its vhost
            await node.write("definitions.json", json.dumps(DEFINITIONS))
            lines.append(f"load_definitions = {node.data_dir}/definitions.json\n")
        elif node.starts == 0:
            wait += f"; {FIRST.format(nodes[0].address)}"
        await node.write("rabbitmq.conf", CONFIGURATION, lines="".join(lines))
        settings = {
            "HOME": node.data_dir,
            "RABBITMQ_NODENAME": f"rabbit@{node.address}",
            "RABBITMQ_USE_LONGNAME": "true",
            "RABBITMQ_CONFIG_FILE": f"{node.data_dir}/rabbitmq.conf",
            "RABBITMQ_GENERATED_CONFIG_DIR": f"{node.data_dir}/generated",
            "RABBITMQ_MNESIA_BASE": f"{node.data_dir}/mnesia",
            "RABBITMQ_LOG_BASE": node.log_dir,
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"-setcookie krucible -kernel net_ticktime 5 {NO_BUSY_WAIT}",
        }
        environment = " ".join(f"{name}='{value}'" for name, value in settings.items())
        return {"epmd": "exec epmd", "rabbitmq": f"{wait}; {self.before}; exec env {environment} {BIN}/rabbitmq-server"}

    async def ready(self, nodes):
        return await super().ready(nodes) or await self.caught_up(nodes)

    async def caught_up(self, nodes):
        lines = (await nodes[0].output(f"grep 'rabbit on node' {nodes[0].log_dir}/rabbitmq.log")).splitlines()
        peers = dict(line.split("rabbit on node ")[1].split() for line in lines)  # the last state of each: up or down
        return None if list(peers.values()).count("up") == len(nodes) - 1 else "the cluster is not whole"


class QuorumQueue(RabbitMQ):
    """RabbitMQ 3.10 with quorum queues."""

    client = QuorumClient


class FlagsMended(QuorumQueue):
    """An empty file of feature flags is removed before each start, because RabbitMQ starts if the file is missing."""

    before = "find . -name '*-feature_flags' -empty -delete"
