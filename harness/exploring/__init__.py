"""Every order of messages, timeouts, crashes and cuts of a few voters, over the very core that runs in containers."""
