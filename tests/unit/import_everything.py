"""Imports every module of a package while others are refused: `python import_everything.py PACKAGE RULE [LEFT_OUT…]`.

RULE is a list of top-level names that cannot be imported (`worker,torch`), or, with `=` in front, of the only foreign ones
that can (`=msgspec`). Prints the modules imported.
"""

import pkgutil
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from types import ModuleType


class Blocker(MetaPathFinder):
    """Refuses names as if they were not installed."""

    def __init__(self, package: str, rule: str) -> None:
        self._names = set(rule.removeprefix("=").split(","))
        self._only = rule.startswith("=")
        self._always = {package} | set(sys.stdlib_module_names)

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        """Raise for a refused name; leave every other one to the finders that follow."""
        top = fullname.partition(".")[0]
        if top not in self._always and (top in self._names) != self._only:
            raise ModuleNotFoundError(f"{fullname} is blocked here", name=fullname)


def modules_of(package: ModuleType, left_out: Sequence[str]) -> Iterator[str]:
    """Import the package's modules one by one, and name them."""
    yield package.__name__
    for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        if found.name in left_out:
            continue
        module = import_module(found.name)
        if found.ispkg:
            yield from modules_of(module, left_out)
        else:
            yield found.name


if __name__ == "__main__":
    name, rule, *left_out = sys.argv[1:]
    sys.meta_path.insert(0, Blocker(name, rule))
    for imported in modules_of(import_module(name), left_out):
        sys.stdout.write(f"{imported}\n")
