"""The load generator: raw asyncio, one process, HTTP/1.1 with connections kept."""
