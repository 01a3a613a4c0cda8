"""Patroni 3.0.2 with a compare in `Etcd3._update_leader`; Python reads this file at each start as sitecustomize.py."""

from patroni.dcs.etcd3 import Etcd3

without_compare = Etcd3._update_leader


def _update_leader(self):
    """Write the leader key with the new lease only if nobody wrote the key since this node read it."""
    client, leader, kept = self._client, self.cluster and self.cluster.leader, []

    def put(key, value, lease=None, **more):
        compare = {"mod_revision": leader.index if leader else 0} if key == self.leader_path else {}
        kept.append(type(client).put(client, key, value, lease, **compare, **more))
        return kept[-1]

    client.put = put
    try:
        return without_compare(self) and all(kept)
    finally:
        del client.put


Etcd3._update_leader = _update_leader
