"""Ports for a local fleet: free now, and each given out once."""

import socket

GRPC_OFFSET = 1000
"""A worker's gRPC port is its HTTP port plus this."""

MAX_PORT = 65535
SEARCHES = 50


class PortRefused(Exception):
    """A port cannot be had. The message is for the person who started us, and names the flag to change."""


class Ports:
    """Claims ports one after the other. Nothing is held open, so a stranger may still be faster than our children."""

    def __init__(self) -> None:
        self._owners: dict[int, str] = {}

    def claim(self, host: str, port: int, *, owner: str, flag: str) -> int:
        """Give this port to this owner. Raises PortRefused when it is taken, given already, or no port at all."""
        if port > MAX_PORT:
            raise PortRefused(
                f"The {owner} would need port {port}, and ports end at {MAX_PORT}: choose a lower {flag}."
            )
        if port in self._owners:
            raise PortRefused(
                f"Port {port} is asked for by the {self._owners[port]} and by the {owner}: change {flag}."
            )
        try:
            _bind(host, port)
        except OSError as failure:
            reason = failure.strerror or failure
            raise PortRefused(f"The {owner} cannot have port {port} on {host} ({reason}): change {flag}.") from failure
        self._owners[port] = owner
        return port

    def claim_pair(self, host: str, port: int, *, owner: str, flag: str) -> int:
        """The same for a worker's two ports; answers the HTTP one."""
        self.claim(host, port, owner=owner, flag=flag)
        self.claim(host, port + GRPC_OFFSET, owner=f"{owner} (gRPC)", flag=flag)
        return port

    def pick(self, host: str, *, owner: str, pair: bool = False) -> int:
        """Claim any free port, or a free pair."""
        claim = self.claim_pair if pair else self.claim
        for _ in range(SEARCHES):
            port = _bind(host, 0)
            if port in self._owners:
                continue
            try:
                return claim(host, port, owner=owner, flag="the port")
            except PortRefused:
                self._owners.pop(port, None)
        raise PortRefused(f"No free port was found on {host} for the {owner}.")


def _bind(host: str, port: int) -> int:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        # As servers do: a port that only waits out old connections counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
        bound: int = probe.getsockname()[1]
        return bound
