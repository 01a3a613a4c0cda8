"""What all backends with an agent on each node share: the stream to the agent, and every verb but making nodes."""
