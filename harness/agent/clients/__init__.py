"""The clients of a client node: a process of their own, and a watchdog over them."""
