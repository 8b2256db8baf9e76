"""TLS of the worker's HTTP side: what it serves with, and what it fetches prefill states from other workers with."""

import ssl

from worker.config import WorkerConfig


class TlsRefused(Exception):
    """A certificate, key or CA cannot be used. The message is for the operator."""


def serving_context(config: WorkerConfig) -> ssl.SSLContext | None:
    """What HTTPS is served with, None for plain HTTP. With a CA, callers must show a certificate of its. Raises TlsRefused."""
    if config.tls_cert is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load(context, config)
    if config.tls_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def fetching_context(config: WorkerConfig) -> ssl.SSLContext:
    """What states are fetched over HTTPS with: trusts the same CA, or the system's; shows our certificate. Raises TlsRefused."""
    context = ssl.create_default_context()
    _load(context, config)
    return context


def _load(context: ssl.SSLContext, config: WorkerConfig) -> None:
    try:
        if config.tls_cert is not None:
            context.load_cert_chain(config.tls_cert, config.tls_key)
        if config.tls_ca is not None:
            context.load_verify_locations(config.tls_ca)
    except OSError as error:  # An ssl.SSLError is one too.
        files = ", ".join(str(path) for path in (config.tls_cert, config.tls_key, config.tls_ca) if path is not None)
        raise TlsRefused(
            f"--tls-cert, --tls-key, --tls-ca: {files} cannot be used: {error.strerror or error}."
        ) from error
