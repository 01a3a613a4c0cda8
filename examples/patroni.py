"""PostgreSQL 15 under Patroni 3.0.2, which keeps its leader key in etcd 3.4; every node runs all three."""

import base64
import json
import urllib.request
from contextlib import suppress
from dataclasses import replace

import psycopg

from krucible import Client, Needs, System

ETCD, PEER, REST, BIN = 2379, 2380, 8008, "/usr/lib/postgresql/15/bin"
KEY = json.dumps({"key": base64.b64encode(b"/service/k/leader").decode(), "serializable": True})
LEADER = f"POST /v3/kv/range HTTP/1.0\r\nContent-Length: {len(KEY)}\r\n\r\n{KEY}"
DEBIAN = ("patroni", "python3-etcd", "etcd-server", "postgresql-15")
CONFIGURATION = """
scope: k
name: {node.name}
restapi: {{listen: "{node.address}:8008", connect_address: "{node.address}:8008"}}
etcd3: {{hosts: [{etcds}]}}
bootstrap:
  initdb: [data-checksums, {{auth: trust}}]
  dcs: {{ttl: 10, loop_wait: 1, retry_timeout: 3, synchronous_mode: true, synchronous_mode_strict: true,
         postgresql: {{use_pg_rewind: true}}}}
postgresql: {{listen: "{node.address}:5432", connect_address: "{node.address}:5432", data_dir: "{node.data_dir}/pg",
  bin_dir: /usr/lib/postgresql/15/bin, pgpass: "{node.data_dir}/pgpass", parameters: {{unix_socket_directories: ""}},
  pg_hba: [local all all trust, host all all all trust, host replication all all trust],
  authentication: {{superuser: {{username: postgres}}, replication: {{username: replicator}}}}}}
"""


class Patroni(System):
    """Strictly synchronous: a commit is acknowledged only if the standby that would take over has it."""

    port, failover_s, processes = 5432, 15, ("etcd", "patroni")
    needs = Needs(debian=DEBIAN, wheels=("psycopg[binary]>=3.2",), user="postgres")

    async def start(self, node, nodes):
        members = ",".join(f"{n.name}=http://{n.address}:{PEER}" for n in nodes)
        client, peer = f"http://{node.address}:{ETCD}", f"http://{node.address}:{PEER}"
        etcd = f"exec etcd --name={node.name} --initial-cluster={members} --listen-peer-urls={peer} --data-dir=etcd"
        etcd += f" --initial-advertise-peer-urls={peer} --listen-client-urls={client} --advertise-client-urls={client}"
        etcds = ",".join(f'"{n.address}:{ETCD}"' for n in nodes)
        await node.write("patroni.yml", CONFIGURATION, node=node, etcds=etcds)
        return {"etcd": etcd, "patroni": f"export PATH={BIN}:$PATH PYTHONPATH=$PWD/mend; exec patroni patroni.yml"}

    async def status(self, node):
        """The epoch is the revision with which the leader key was created: it grows with every election."""
        answer = (await node.ask(ETCD, LEADER, timeout_s=1)).partition("\r\n\r\n")[2]
        if not answer or "kvs" not in (found := json.loads(answer)):
            return None
        key = found["kvs"][0]
        leader = base64.b64decode(key["value"]).decode()
        if leader == node.name and " 200 " not in await node.ask(REST, "GET /primary HTTP/1.0\r\n\r\n", timeout_s=1):
            leader = None
        return node.reports(int(key["create_revision"]), leader)


class PatroniClient(Client):
    refused = (psycopg.errors.ReadOnlySqlTransaction,)

    def leader(self):
        for server in self.servers.values():
            with suppress(OSError), urllib.request.urlopen(f"http://{server.host}:{REST}/primary", timeout=0.4):
                return server.node
        raise LookupError("no Patroni reports that it leads")

    def open(self, server):
        return psycopg.connect(f"host={server.host} user=postgres connect_timeout=2", autocommit=True)

    def create(self, key=None):
        self.connection.execute("create table if not exists kept (k text, v bigint, primary key (k, v))")

    def add(self, key, value):
        self.connection.execute("insert into kept values (%s, %s)", (key, value))

    def members(self, key):
        """Read, and write a message to the log: the standby's confirmation proves that this is still the primary."""
        with self.connection.transaction():
            found = self.connection.execute("select v from kept where k = %s", (key,)).fetchall()
            self.connection.execute("select pg_logical_emit_message(true, 'read', '')")
        return [v for (v,) in found]


class Mended(Patroni):
    """A returning leader does not overwrite its successor's leader key."""

    needs = replace(Patroni.needs, files={"mend/sitecustomize.py": "mends/patroni_update_leader.py"})
