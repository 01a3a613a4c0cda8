"""Every order of messages, timeouts, crashes and cuts of a few voters, with the same core that runs in containers."""
