"""Which link a worker is spoken to over: by its URL, and by what the operator chose for those that leave it open."""

import os
import ssl
from pathlib import Path
from urllib.parse import urlsplit

from gateway.config import GatewayConfig
from gateway.links.base import Link
from gateway.links.http import HttpLink
from gateway.links.read_window import ReadWindow


class LinkRefused(Exception):
    """There can be no such link: a file cannot be read, or the extra is not installed. The message is for the operator."""


def link_of(config: GatewayConfig, url: str) -> Link:
    """The link to the worker at a URL. Raises LinkRefused."""
    window = ReadWindow(config.read_window_ms / 1000)
    if config.link == "http" and urlsplit(url).scheme != "grpc":
        return HttpLink(url, window=window, key=config.internal_key, ssl_context=_context_of(config, url))
    # gRPC's own library writes lines of its own to stderr, where our logs are JSON.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        from gateway.links.grpc import GrpcLink, Tls
    except ModuleNotFoundError as error:
        raise LinkRefused(f"--link grpc needs the extra `grpc`: pip install 'packrelay[grpc]' ({error}).") from error
    tls = None
    if config.link_tls_ca is not None or config.link_tls_cert is not None:
        pems = [_read(path) for path in (config.link_tls_ca, config.link_tls_cert, config.link_tls_key)]
        tls = Tls(ca=pems[0], certificate=pems[1], key=pems[2])
    context = _context_of(config, url)
    return GrpcLink(url, key=config.internal_key, tls=tls, ssl_context=context, window=window)


def _context_of(config: GatewayConfig, url: str) -> ssl.SSLContext | None:
    """What a worker at https:// is spoken to with, None for one in plain text. Raises LinkRefused."""
    if urlsplit(url).scheme != "https":
        return None
    try:
        context = ssl.create_default_context(cafile=config.link_tls_ca)
        if config.link_tls_cert is not None:
            context.load_cert_chain(config.link_tls_cert, config.link_tls_key)
    except OSError as error:  # An ssl.SSLError is one too.
        files = (config.link_tls_ca, config.link_tls_cert, config.link_tls_key)
        named = ", ".join(str(path) for path in files if path is not None)
        raise LinkRefused(f"--link-tls-*: {named} cannot be used: {error.strerror or error}.") from error
    return context


def _read(path: Path | None) -> bytes | None:
    try:
        return None if path is None else path.read_bytes()
    except OSError as error:
        raise LinkRefused(f"{path} cannot be read: {error.strerror or error}.") from error
