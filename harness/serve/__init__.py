"""The local page over many runs: read-only, without a build step, without anything from the network."""
