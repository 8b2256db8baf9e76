"""How many connections a gateway takes, by the file descriptors it has."""

import pytest

from gateway.room import OWN_DESCRIPTORS, room_in


@pytest.mark.parametrize("descriptors", [128, 256, 1024, 1 << 20])
def test_all_connections_fit_into_the_descriptors(descriptors: int) -> None:
    """Those that are served with two legs each, those that are refused, and a queue full of them that all come at once."""
    room = room_in(descriptors)

    assert 3 * room.served + 2 * room.refused + OWN_DESCRIPTORS <= descriptors
    assert room.served >= descriptors // 10


def test_even_the_smallest_gateway_serves_somebody() -> None:
    """Whatever the system allows."""
    room = room_in(16)

    assert room.served >= 1
    assert room.refused >= 1
