"""The local page over many runs: read-only, without a build step, and without resources from other servers."""
