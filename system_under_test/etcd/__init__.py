"""etcd as a subject: its client over the JSON gateway, its members, and how it is started and observed."""
