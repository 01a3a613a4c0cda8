"""What a node needs of the world: clock, transport, disk."""
