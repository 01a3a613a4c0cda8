"""etcd 3.4 as Debian packages it, and locks that a client takes with a lease and keeps alive while it holds them.

If the lease of a holder ends while the holder is cut off or paused, the holder still believes that it holds the lock.
`acquire_token` and `fenced_write` are the remedy: the token is the revision at which the lock was acquired, and the
guarded resource refuses a write with a smaller token than an earlier one.
"""

import base64
import json
import re
import threading
import urllib.request

from krucible import Client, Needs, System

LEASE_S = 2
LINES = "became [a-z-]+ at term|(elected|changed|lost) leader"
TOLD = re.compile(
    r"(\w+) (?:became (\S+)|elected leader (\w+)|changed leader from \w+ to (\w+)|lost leader \w+) at term (\d+)"
)


class Etcd(System):
    port = 2379
    needs = Needs(debian=("etcd-server",))
    unreachable_by = {"clock": "etcd is written in Go, which reads the clock without the C library"}

    def __init__(self):
        self.names = {}

    async def start(self, node, nodes):
        clients, peers = f"http://{node.address}:2379", f"http://{node.address}:2380"
        urls = f"--listen-client-urls={clients} --advertise-client-urls={clients}"
        urls += f" --listen-peer-urls={peers} --initial-advertise-peer-urls={peers}"
        members = ",".join(f"{n.name}=http://{n.address}:2380" for n in nodes)
        return f"exec etcd --name={node.name} --data-dir=etcd {urls} --initial-cluster={members} --pre-vote"

    async def status(self, node):
        """Read the log: `endpoint status` would combine the term of the last applied entry with the current leader."""
        told = TOLD.search(await node.output(f"grep -aE '{LINES}' {node.log_dir}/server.log | tail -n 1"))
        if not told:
            return None
        own, role, elected, changed, term = told.groups()
        self.names[own] = node.name
        return node.reports(int(term), node.name if role == "leader" else self.names.get(elected or changed))


def coded(text):
    return base64.b64encode(text.encode()).decode()


def guard(token):
    """Tokens are compared as strings, so each has 20 digits."""
    return coded(f"{token:020d}")


class LockClient(Client):
    def open(self, server):
        self.url, self.lease, self.done = f"http://{server.host}:{server.port}/v3/", None, threading.Event()

    def close(self):
        self.done.set()

    def ask(self, path, **body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=2) as answer:
            return json.load(answer)

    def put_if(self, condition, key, value, **more):
        put = {"request_put": {"key": coded(key), "value": value, **more}}
        return self.ask("kv/txn", compare=[{"key": coded(key), **condition}], success=[put])

    def put_if_absent(self, key, value, **more):
        absent = {"target": "CREATE", "result": "EQUAL", "create_revision": 0}
        return self.put_if(absent, key, value, **more)

    def create(self, key=None):
        self.put_if_absent(f"guarded/{key}", guard(0))

    def acquire_token(self, key):
        lease = self.ask("lease/grant", TTL=LEASE_S)["ID"]
        answer = self.put_if_absent(f"lock/{key}", guard(0), lease=lease)
        if not answer.get("succeeded"):
            return None
        self.lease, self.done = lease, threading.Event()
        threading.Thread(target=self.keep_alive, args=(lease, self.done), daemon=True).start()
        return int(answer["header"]["revision"])

    def acquire(self, key):
        return self.acquire_token(key) is not None

    def keep_alive(self, lease, done):
        while not done.wait(LEASE_S / 4):
            try:
                self.ask("lease/keepalive", ID=lease)
            except OSError:
                continue

    def release(self, key):
        self.done.set()
        self.ask("lease/revoke", ID=self.lease)

    def fenced_write(self, key, token):
        no_greater_wrote = {"target": "VALUE", "result": "LESS", "value": guard(token + 1)}
        return self.put_if(no_greater_wrote, f"guarded/{key}", guard(token)).get("succeeded", False)
