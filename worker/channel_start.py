"""The channel as the worker's process has it: only where it is asked for, because it needs an extra.

ChannelFailed   there can be no channel: its port is taken, a certificate cannot be read, or the extra is not installed
"""

import os
from typing import TYPE_CHECKING

from worker.config import WorkerConfig
from worker.operations import Front, Operations
from worker.service import Service

if TYPE_CHECKING:  # it imports grpc, which not every worker has
    from worker.channel import ChannelServer


class ChannelFailed(Exception):
    """There can be no channel. The message is for the operator."""


def bind_channel(config: WorkerConfig) -> "ChannelServer | None":
    """The channel's server with its port taken, but not serving; None if there is to be no channel. Raises ChannelFailed."""
    if config.grpc_port is None:
        return None
    # gRPC's own library writes lines of its own to stderr, where our logs are JSON.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        from worker.channel import ChannelServer, Tls
    except ModuleNotFoundError as error:
        raise ChannelFailed(f"--grpc-port needs the extra `grpc`: pip install 'packrelay[grpc]' ({error}).") from error
    tls = None
    if config.grpc_tls_cert is not None and config.grpc_tls_key is not None:
        tls = Tls(certificate=config.grpc_tls_cert, key=config.grpc_tls_key, ca=config.grpc_tls_ca)
    try:
        return ChannelServer(config.host, config.grpc_port, tls=tls, max_body_bytes=config.max_body_bytes)
    except OSError as error:
        raise ChannelFailed(f"--grpc-port {config.grpc_port}: {error}.") from error


async def start_channel(channel: "ChannelServer", service: Service, front: Front) -> None:
    """Serve the service over its channel."""
    from worker.channel_answer import Answering

    await channel.start(Answering(Operations(service, front)))
