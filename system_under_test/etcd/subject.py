"""etcd as a subject."""
