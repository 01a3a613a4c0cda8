"""ZooKeeper 3.8.0 as Debian packages it: an ensemble, and registers whose readers sync first."""

from krucible import Client, Needs, NodeStatus, System

ENSEMBLE = "tickTime=1000\ninitLimit=10\nsyncLimit=5\nadmin.enableServer=false\n4lw.commands.whitelist=srvr\n"
OWN = "dataDir={}/zookeeper\nclientPort=2181\nclientPortAddress={}\n"
JAR = "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-simple.jar"
SERVER = f"-Xmx96m -cp {JAR} org.apache.zookeeper.server.quorum.QuorumPeerMain zoo.cfg"


class ZooKeeper(System):
    port = 2181
    needs = Needs(debian=("libzookeeper-java", "openjdk-17-jre-headless"), wheels=("kazoo>=2.9",))
    options = ""

    async def start(self, node, nodes):
        servers = "".join(f"server.{other.index + 1}={other.address}:2888:3888\n" for other in nodes)
        await node.write("zoo.cfg", ENSEMBLE + OWN.format(node.data_dir, node.address) + servers)
        identity = f"mkdir -p zookeeper; test -s zookeeper/myid || echo {node.index + 1} > zookeeper/myid"
        return f"{identity}; sync zookeeper/myid zookeeper .; exec java {self.options} {SERVER}"

    async def status(self, node):
        answer = await node.output(f"exec 3<>/dev/tcp/{node.address}/2181; echo srvr >&3; cat <&3")
        words = dict(line.split(": ", 1) for line in answer.splitlines() if ": " in line)
        if "Mode" not in words:
            return None
        role, leader = ("leader", node.name) if words["Mode"] == "leader" else ("follower", None)
        return NodeStatus(node.name, int(words["Zxid"], 16) >> 32, role, leader)

    async def ready(self, nodes):
        silent = [node.name for node in nodes if await self.status(node) is None]
        return f"{', '.join(silent)} serves no client" if silent else None

    caught_up = ready


class TrustEmpty(ZooKeeper):
    """ZooKeeper 3.8.0 that believes its log where a snapshot is missing."""

    options = "-Dzookeeper.snapshot.trust.empty=true"


class RegisterClient(Client):
    def open(self, server):
        from kazoo.client import KazooClient
        from kazoo.retry import KazooRetry

        once = {"connection_retry": KazooRetry(max_tries=0), "command_retry": KazooRetry(max_tries=0)}
        self.zk = KazooClient(f"{server.host}:{server.port}", **once)
        self.zk.start(timeout=2)

    def close(self):
        self.zk.stop()
        self.zk.close()

    def create(self, key=None):
        self.zk.ensure_path(f"/{key}")

    def read(self, key):
        self.zk.sync(f"/{key}")
        text, _ = self.zk.get(f"/{key}")
        return int(text) if text else None

    def write(self, key, value):
        self.zk.set(f"/{key}", str(value).encode())
