"""The console scripts packrelay-gateway and packrelay-up: see `schemas.origin.start` for what is checked first."""

import sys
from importlib.util import find_spec

try:
    from schemas.origin import start
except ModuleNotFoundError:
    # Somebody else's `schemas` stands first on the path, so ours cannot be asked to say it.
    foreign = find_spec("schemas")
    places = ", ".join((foreign and foreign.submodule_search_locations) or ["nowhere"])
    sys.stderr.write(f"packrelay: the package `schemas` is imported from {places}, and that is not packrelay's.\n")
    sys.exit(2)


def main() -> int:
    return start("packrelay-gateway", extra="gateway", module="gateway.cli")


def up() -> int:
    return start("packrelay-up", extra="gateway", module="gateway.up")


if __name__ == "__main__":
    sys.exit(main())
