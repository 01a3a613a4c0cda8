"""ZooKeeper 3.8.0 as Debian packages it: an ensemble, with registers and sets.

`sync` does not ask a majority: a leader that has not noticed that it is cut off answers with old state (ZOOKEEPER-1675
describes this).  So a reader first writes to a node that only readers use; its read is then not older than this write.
"""

from kazoo.client import KazooClient
from kazoo.retry import KazooRetry

from krucible import Client, Needs, System

CONFIGURATION = """tickTime=500\ninitLimit=20\nsyncLimit=5\nadmin.enableServer=false\n4lw.commands.whitelist=srvr
dataDir={node.data_dir}/zookeeper\nclientPort=2181\nclientPortAddress={node.address}\n{servers}"""
JAR = "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-simple.jar"
SERVER = f"-Xmx96m -cp {JAR} org.apache.zookeeper.server.quorum.QuorumPeerMain zoo.cfg"


class ZooKeeper(System):
    port = 2181
    needs = Needs(debian=("libzookeeper-java", "openjdk-17-jre-headless"), wheels=("kazoo>=2.9",))
    options = ""

    async def start(self, node, nodes):
        servers = "".join(f"server.{other.index + 1}={other.address}:2888:3888\n" for other in nodes)
        await node.write("zoo.cfg", CONFIGURATION, servers=servers)
        identity = f"mkdir -p zookeeper; test -s zookeeper/myid || echo {node.index + 1} > zookeeper/myid"
        return f"{identity}; sync zookeeper/myid zookeeper .; exec java {self.options} {SERVER}"

    async def status(self, node):
        answer = await node.ask(2181, "srvr")
        words = dict(line.split(": ", 1) for line in answer.splitlines() if ": " in line)
        if "Mode" not in words:
            return None
        return node.reports(int(words["Zxid"], 16) >> 32, node.name if words["Mode"] == "leader" else None)


class TrustEmpty(ZooKeeper):
    """ZooKeeper 3.8.0 that trusts its log if a snapshot is missing."""

    options = "-Dzookeeper.snapshot.trust.empty=true"


class ZNodes(Client):
    def open(self, server):
        once = KazooRetry(max_tries=0)
        self.zk = KazooClient(f"{server.host}:{server.port}", connection_retry=once, command_retry=once)
        self.zk.start(timeout=2)

    def close(self):
        self.zk.stop()
        self.zk.close()

    def create(self, key=None):
        self.zk.ensure_path("/reads")
        self.zk.ensure_path(f"/{key}")

    def read(self, key):
        self.zk.set("/reads", b"")
        text, _ = self.zk.get(f"/{key}")
        return int(text) if text else None

    def write(self, key, value):
        self.zk.set(f"/{key}", str(value).encode())

    def add(self, key, value):
        self.zk.create(f"/{key}/{value}")

    def members(self, key):
        self.zk.set("/reads", b"")
        return [int(name) for name in self.zk.get_children(f"/{key}")]
