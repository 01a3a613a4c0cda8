"""Asks etcd through its JSON gateway."""
