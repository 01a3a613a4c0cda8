"""What the agent starts: the one server with all its processes, and commands."""
