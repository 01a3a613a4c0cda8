"""Kafka's protocol on asyncio: frames, server, channels to peers, translation to the core's messages."""
