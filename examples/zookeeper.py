"""ZooKeeper 3.8.0 as Debian packages it: an ensemble, and registers whose readers sync first."""

from krucible import Client, Needs, NodeStatus, System

CONFIGURATION = """
tickTime=1000
initLimit=10
syncLimit=5
dataDir={data_dir}/zookeeper
clientPort=2181
clientPortAddress={address}
admin.enableServer=false
4lw.commands.whitelist=srvr
"""
SERVER = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
STATUS = "exec 3<>/dev/tcp/{}/2181; echo srvr >&3; cat <&3"


class ZooKeeper(System):
    port = 2181
    needs = Needs(debian=("libzookeeper-java", "openjdk-17-jre-headless"), wheels=("kazoo>=2.9",))
    options = ""

    async def start(self, node, nodes):
        servers = "".join(f"server.{other.index + 1}={other.address}:2888:3888\n" for other in nodes)
        own = CONFIGURATION.format(data_dir=node.data_dir, address=node.address)
        await node.write("zoo.cfg", own + servers)
        identity = f"mkdir -p zookeeper; test -s zookeeper/myid || echo {node.index + 1} > zookeeper/myid"
        java = f"java -Xmx96m {self.options} -cp /usr/share/java/zookeeper.jar:/usr/share/java/slf4j-simple.jar"
        return f"{identity}; sync zookeeper/myid zookeeper .; exec {java} {SERVER} zoo.cfg"

    async def status(self, node):
        words = dict(line.split(": ", 1) for line in (await self.answer(node)).splitlines() if ": " in line)
        if "Mode" not in words:
            return None
        leads = words["Mode"] == "leader"
        return NodeStatus(
            node.name, int(words["Zxid"], 16) >> 32, "leader" if leads else "follower", node.name if leads else None
        )

    async def answer(self, node):
        return await node.output(STATUS.format(node.address))

    async def ready(self, nodes):
        return await self.caught_up(nodes)

    async def caught_up(self, nodes):
        silent = [node.name for node in nodes if "Mode: " not in await self.answer(node)]
        return f"{', '.join(silent)} serves no client" if silent else None


class TrustEmpty(ZooKeeper):
    """ZooKeeper 3.8.0 that takes its log for the truth where a snapshot is missing."""

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
