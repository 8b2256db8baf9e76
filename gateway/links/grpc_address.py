"""Where a worker's channel is: said in its URL (`grpc://host:port`), or by the worker itself over HTTP (`/server_info`)."""

import ssl
from typing import Final
from urllib.parse import urlsplit

from gateway.links.base import ConnectFailed, Deadlines, LinkError
from gateway.links.http import HttpLink
from schemas.codec import DecodeFailure, guarded, json_decoder
from schemas.server_info import PackrelayInfo, ServerInfo

_ASKING: Final = Deadlines(connect=2, first_byte=2, idle=2, total=4)

_server_info = json_decoder(ServerInfo)


class Address:
    """The `host:port` of one worker's channel. Raises ValueError for a URL that is neither kind.

    `ssl_context` is for asking a worker at `https://`; without it the system's certificates are trusted.
    """

    def __init__(self, url: str, ssl_context: ssl.SSLContext | None = None) -> None:
        self._url = url
        self._ssl_context = ssl_context
        parts = urlsplit(url)
        if parts.scheme not in {"grpc", "http", "https"} or not parts.hostname:
            raise ValueError(f"The worker URL {url!r} is not of the form grpc://host:port or http://host:port.")
        self._host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        self._known: str | None = None
        if parts.scheme == "grpc":
            if parts.port is None or parts.path.strip("/") or parts.query or parts.username is not None:
                raise ValueError(f"The worker URL {url!r} is not of the form grpc://host:port.")
            self._known = f"{self._host}:{parts.port}"
        self._asks = parts.scheme != "grpc"

    async def find(self) -> str:
        """The address; asked for once, until `forget`. Raises ConnectFailed if the worker does not say."""
        if self._known is None:
            self._known = f"{self._host}:{await self._ask()}"
        return self._known

    def forget(self) -> None:
        """It did not work: a worker that was started anew may have its channel elsewhere, so ask again."""
        if self._asks:
            self._known = None

    async def _ask(self) -> int:
        link = HttpLink(self._url, ssl_context=self._ssl_context)
        try:
            reply = await link.get("/server_info", _ASKING)
            info: ServerInfo = guarded(_server_info.decode, reply.body)
        except (LinkError, DecodeFailure) as error:
            raise ConnectFailed(f"The worker at {self._url} did not say where its channel is: {error}") from error
        finally:
            await link.close()
        port = info.packrelay.grpc_port if isinstance(info.packrelay, PackrelayInfo) else None
        if port is None:
            raise ConnectFailed(f"The worker at {self._url} has no gRPC channel.")
        return port
