"""Kafka's wire protocol on asyncio: frames, a server, channels between voters, and the client-facing requests."""
