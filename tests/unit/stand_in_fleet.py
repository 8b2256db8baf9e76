"""packrelay-up, starting stand-ins: `python -m tests.unit.stand_in_fleet FLAGS…`.

STAND_IN_MARGIN and STAND_IN_PATIENCE shorten its waits, in seconds.
"""

import os
import sys
from collections.abc import Sequence

from gateway.up import Patience, main


def stand_in_command(package: str, flags: Sequence[str]) -> Sequence[str]:
    """The command line of a stand-in for one of our packages."""
    return [sys.executable, "-P", "-m", "tests.unit.stand_in_server", package, *flags]


if __name__ == "__main__":
    patience = Patience(
        until_ready=float(os.environ.get("STAND_IN_PATIENCE", "30")),
        beyond_grace=float(os.environ.get("STAND_IN_MARGIN", "20")),
    )
    sys.exit(main(command_of=stand_in_command, patience=patience))
