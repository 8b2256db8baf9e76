"""Content codings are taken off whole, within a limit, and what is not in them is the client's mistake."""

import gzip
import zlib
from collections.abc import Callable

import pytest
from backports import zstd

from gateway.content_coding import MAX_PARTS, coding_of, decoded
from schemas.openai.errors import ServingError

PLAIN = b'{"model": "m"}' * 1000
LIMIT = 1 << 20


def raw_deflate(data: bytes) -> bytes:
    """Deflate as it is often sent: without zlib's wrapper."""
    deflater = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return deflater.compress(data) + deflater.flush()


ENCODERS: list[tuple[bytes, Callable[[bytes], bytes]]] = [
    (b"gzip", gzip.compress),
    (b"x-gzip", gzip.compress),
    (b"deflate", zlib.compress),
    (b"deflate", raw_deflate),
    (b"zstd", zstd.compress),
]
IN_PARTS = [entry for entry in ENCODERS if entry[0] != b"deflate"]


@pytest.mark.parametrize(("coding", "encode"), ENCODERS)
def test_every_coding_is_taken_off(coding: bytes, encode: Callable[[bytes], bytes]) -> None:
    """What was compressed comes out as it was, up to exactly the limit."""
    assert decoded(coding, encode(PLAIN), len(PLAIN)) == PLAIN


@pytest.mark.parametrize(("coding", "encode"), IN_PARTS)
def test_body_may_be_in_parts(coding: bytes, encode: Callable[[bytes], bytes]) -> None:
    """Members of a gzip file, and frames of a zstd one, follow each other."""
    assert decoded(coding, encode(PLAIN[:9]) + encode(PLAIN[9:]), LIMIT) == PLAIN


@pytest.mark.parametrize(("coding", "encode"), IN_PARTS)
def test_parts_are_bounded(coding: bytes, encode: Callable[[bytes], bytes]) -> None:
    """A body of very many parts would cost a copy for each; it is a 400."""
    assert decoded(coding, encode(b"a") * MAX_PARTS, LIMIT) == b"a" * MAX_PARTS
    with pytest.raises(ServingError) as refused:
        decoded(coding, encode(b"a") * (MAX_PARTS + 1), LIMIT)
    assert refused.value.status == 400


@pytest.mark.parametrize(("coding", "encode"), ENCODERS)
def test_bomb_is_bounded(coding: bytes, encode: Callable[[bytes], bytes]) -> None:
    """A small body that would become larger than the limit is a 413, also when only its second part does."""
    for bomb in (
        encode(bytes(LIMIT + 1)),
        encode(bytes(LIMIT)) + encode(b"a") if (coding, encode) in IN_PARTS else b"",
    ):
        with pytest.raises(ServingError) as refused:
            decoded(coding, bomb or encode(bytes(LIMIT + 1)), LIMIT)
        assert (refused.value.status, refused.value.code) == (413, "body_too_large")


def test_zstd_window_is_bounded() -> None:
    """A frame that needs more memory to read than HTTP allows is a 400."""
    wide: dict[int, int] = {zstd.CompressionParameter.window_log: 24, zstd.CompressionParameter.content_size_flag: 0}
    compressor = zstd.ZstdCompressor(options=wide)
    body = compressor.compress(PLAIN) + compressor.flush()

    with pytest.raises(ServingError) as refused:
        decoded(b"zstd", body, LIMIT)
    assert refused.value.status == 400


@pytest.mark.parametrize(("coding", "encode"), ENCODERS)
def test_what_is_not_in_its_coding_is_a_400(coding: bytes, encode: Callable[[bytes], bytes]) -> None:
    """An empty body, one that is cut, one that goes on, and one that is not compressed."""
    for broken in (b"", encode(PLAIN)[:-5], encode(PLAIN) + b"more", PLAIN):
        with pytest.raises(ServingError) as refused:
            decoded(coding, broken, LIMIT)
        assert refused.value.status == 400


@pytest.mark.parametrize(
    ("header", "coding"),
    [(b"", None), (b"identity", None), (b" GZIP ", b"gzip"), (b"zstd, identity", b"zstd"), (b"Deflate", b"deflate")],
)
def test_header_names_one_coding(header: bytes, coding: bytes | None) -> None:
    """Names are case-insensitive, and identity is no coding."""
    assert coding_of(header) == coding


@pytest.mark.parametrize("header", [b"br", b"gzip, gzip", b"compress", b"\xff"])
def test_other_codings_are_refused(header: bytes) -> None:
    """A coding that is not known, or more than one, is a 415."""
    with pytest.raises(ServingError) as refused:
        coding_of(header)
    assert refused.value.status == 415
