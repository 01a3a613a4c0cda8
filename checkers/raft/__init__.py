"""Raft's invariants, judged from the traces and logs of the nodes and from the history."""
