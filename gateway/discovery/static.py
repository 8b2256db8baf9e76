"""The fleet as the command line names it."""

from collections.abc import Callable, Iterable

from gateway.links.base import Link
from gateway.member import Role, Worker


def static_workers(
    make_link: Callable[[str], Link], both: Iterable[str], context: Iterable[str], generation: Iterable[str]
) -> list[Worker]:
    """One worker per URL, context workers first, then generation workers, then those that do both."""
    named = [
        *((Role.CONTEXT, url) for url in context),
        *((Role.GENERATION, url) for url in generation),
        *((Role.BOTH, url) for url in both),
    ]
    return [Worker(index, role, make_link(url)) for index, (role, url) in enumerate(named)]
