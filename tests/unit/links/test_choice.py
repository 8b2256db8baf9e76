"""Which link the settings give to a worker."""

from pathlib import Path

import pytest

from gateway.config import GatewayConfig
from gateway.links.choice import LinkRefused, link_of
from gateway.links.grpc import GrpcLink
from gateway.links.http import HttpLink

HTTP, GRPC = "http://h:1", "grpc://h:2"


@pytest.mark.parametrize(
    ("link", "url", "kind"),
    [("http", HTTP, HttpLink), ("grpc", HTTP, GrpcLink), ("http", GRPC, GrpcLink), ("grpc", GRPC, GrpcLink)],
)
async def test_the_url_and_the_setting_choose(link: str, url: str, kind: type) -> None:
    """A grpc URL says it all; for an http URL the setting counts."""
    chosen = link_of(GatewayConfig(worker=(url,), link=link), url)  # type: ignore[arg-type]  # from a parameter list

    assert isinstance(chosen, kind)
    await chosen.close()


def test_a_file_that_is_no_certificate_is_named(tmp_path: Path) -> None:
    """For https workers too, before anything is connected to."""
    nonsense = tmp_path / "ca.pem"
    nonsense.write_text("hello")

    with pytest.raises(LinkRefused, match=r"ca\.pem cannot be used"):
        link_of(GatewayConfig(worker=("https://h:3",), link_tls_ca=nonsense), "https://h:3")


def test_a_certificate_that_is_not_there_is_named(tmp_path: Path) -> None:
    """The operator is told which file cannot be read."""
    missing = tmp_path / "ca.pem"

    with pytest.raises(LinkRefused, match=r"ca\.pem cannot be read"):
        link_of(GatewayConfig(worker=(GRPC,), link_tls_ca=missing), GRPC)
