"""Nodes in containers: images, a network in 198.18.0.0/15, the agent as PID 1, and link cuts on the bridge."""
