"""OpenLDAP 2.5 as Debian packages it: N-way multi-provider replication by syncrepl; every server accepts writes.

Promised: servers that can communicate converge (RFC 4533, "LDAP Content Synchronization Operation", which syncrepl
is; OpenLDAP's guide, "Replication").  Reads may be old.  The guide demands equal clocks: inject no clock faults.
"""

import ldap3
from ldap3.core.exceptions import LDAPEntryAlreadyExistsResult, LDAPNoSuchObjectResult

from krucible import Client, Needs, System

BASE, ADMIN, PASSWORD = "dc=k", "cn=admin,dc=k", "k"
LDIF = "dn: dc=k\nobjectClass: dcObject\nobjectClass: organization\ndc: k\no: k\n"
CONFIGURATION = """
include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
modulepath /usr/lib/ldap
moduleload back_mdb
moduleload syncprov
serverID {number}
database mdb
suffix dc=k
rootdn cn=admin,dc=k
rootpw k
directory {node.data_dir}/db
maxsize 268435456
index objectClass,entryCSN,entryUUID,description eq
{providers}
multiprovider on
overlay syncprov
"""
PROVIDER = (
    'syncrepl rid={rid:03} provider=ldap://{address}:{port} searchbase=dc=k type=refreshAndPersist retry="1 +" '
    "bindmethod=simple binddn=cn=admin,dc=k credentials=k keepalive=2:2:1 network-timeout=2 timeout=5"
)


class OpenLDAP(System):
    port, elections = 3890, False
    needs = Needs(debian=("slapd", "ldap-utils"), wheels=("ldap3==2.9.1",))
    complaints = "(?i)assertion|segmentation"

    async def start(self, node, nodes):
        others = [each for each in nodes if each.name != node.name]
        providers = [PROVIDER.format(rid=each.index + 1, address=each.address, port=self.port) for each in others]
        await node.write("slapd.conf", CONFIGURATION, node=node, number=node.index + 1, providers="\n".join(providers))
        await node.write("base.ldif", LDIF)
        load = "slapadd -f slapd.conf -l base.ldif &&" if node.index == 0 else ""
        server = f"exec /usr/sbin/slapd -f slapd.conf -h ldap://{node.address}:{self.port} -d none"
        return f"test -d db || {{ mkdir db && {load} sync db/* db; }}; {server}"

    async def marks(self, node):
        """Return the newest change that this server has received from each server."""
        ask = f"ldapsearch -x -o nettimeout=2 -H ldap://{node.address}:{self.port} -b dc=k -s base -LLL contextCSN"
        return sorted(line for line in (await node.output(ask)).splitlines() if line.startswith("contextCSN"))

    async def ready(self, nodes):
        lacking = [each.name for each in nodes if not await self.marks(each)]
        return f"the base entry is not on {lacking}" if lacking else None

    async def caught_up(self, nodes):
        found = {each.name: await self.marks(each) for each in nodes}
        return None if len({*map(tuple, found.values())}) == 1 else f"the servers have different changes: {found}"


class EntryClient(Client):
    refused = (LDAPNoSuchObjectResult,)

    def open(self, server):
        where = ldap3.Server(server.host, server.port, get_info=ldap3.NONE, connect_timeout=1)
        return ldap3.Connection(where, ADMIN, PASSWORD, auto_bind=True, raise_exceptions=True, auto_range=False)

    def close(self):
        self.connection.strategy.close()

    def put(self, name, description):
        entry = {"objectClass": "device", "description": description}
        self.connection.add(f"cn={name},{BASE}", attributes=entry)

    def found(self, condition, attribute):
        self.connection.search(BASE, condition, ldap3.LEVEL, attributes=[attribute])
        return [entry["attributes"][attribute] for entry in self.connection.response]

    def create(self, key=None):
        try:
            self.put(f"register-{key}", "0")
        except LDAPEntryAlreadyExistsResult:
            return

    def read(self, key):
        ((value,),) = self.found(f"(cn=register-{key})", "description")
        return int(value) or None

    def write(self, key, value):
        self.connection.modify(f"cn=register-{key},{BASE}", {"description": [(ldap3.MODIFY_REPLACE, [str(value)])]})

    def add(self, key, value):
        self.put(f"{key}-{value}", key)

    def members(self, key):
        return sorted(
            int(name.partition("-")[2]) for (name,) in self.found(f"(&(objectClass=device)(description={key}))", "cn")
        )
