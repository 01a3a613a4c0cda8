"""etcd 3.4 as Debian packages it, and locks that a client takes with a lease and keeps alive while it holds them."""

import base64
import json
import threading
import urllib.request

from krucible import Client, Needs, NodeStatus, System

LEASE_S = 2
STATUS = "etcdctl --endpoints=http://{}:2379 endpoint status -w json"


class Etcd(System):
    port = 2379
    needs = Needs(debian=("etcd-server", "etcd-client"))

    async def start(self, node, nodes):
        members = ",".join(f"{n.name}=http://{n.address}:2380" for n in nodes)
        urls = f"--listen-client-urls=http://{node.address}:2379 --advertise-client-urls=http://{node.address}:2379"
        urls += (
            f" --listen-peer-urls=http://{node.address}:2380 --initial-advertise-peer-urls=http://{node.address}:2380"
        )
        return f"exec etcd --name={node.name} --data-dir=etcd {urls} --initial-cluster={members} --pre-vote"

    async def status(self, node):
        answer = json.loads(await node.output(f"ETCDCTL_API=3 {STATUS.format(node.address)}") or "[]")
        if not answer:
            return None
        told = answer[0]["Status"]
        leads = told.get("leader") == told["header"]["member_id"]
        return NodeStatus(node.name, told["raftTerm"], "leader" if leads else "follower", node.name if leads else None)


class LockClient(Client):
    def open(self, server):
        self.url, self.lease, self.done = f"http://{server.host}:{server.port}/v3/", None, threading.Event()

    def close(self):
        self.done.set()

    def ask(self, path, **body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=2) as answer:
            return json.load(answer)

    def acquire(self, key):
        name = base64.b64encode(key.encode()).decode()
        lease = self.ask("lease/grant", TTL=LEASE_S)["ID"]
        free = {"key": name, "target": "CREATE", "result": "EQUAL", "create_revision": 0}
        put = {"request_put": {"key": name, "value": name, "lease": lease}}
        if not self.ask("kv/txn", compare=[free], success=[put]).get("succeeded"):
            return False
        self.lease, self.done = lease, threading.Event()
        threading.Thread(target=self.keep_alive, args=(lease, self.done), daemon=True).start()
        return True

    def keep_alive(self, lease, done):
        while not done.wait(LEASE_S / 4):
            try:
                self.ask("lease/keepalive", ID=lease)
            except OSError:
                continue

    def release(self, key):
        self.done.set()
        self.ask("lease/revoke", ID=self.lease)
