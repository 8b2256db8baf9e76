"""How a console script begins: with our packages, with its extra installed, and not outliving its parent.

Standard library only, because it must be able to speak when everything else is missing.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlparse
from urllib.request import url2pathname

PACKAGES = ("schemas", "worker", "gateway")
DISTRIBUTION = "packrelay"

LIFELINE_VARIABLE = "PACKRELAY_LIFELINE"
"""Set by a parent that keeps a pipe to our standard input open as long as it lives, and that gave us our own session."""

ORPHAN_GRACE_S = 10.0
"""What an orphan gets between SIGTERM and SIGKILL, in seconds."""

USAGE_ERROR = 2
"""Exit status of a script that refuses to start."""


def start(script: str, *, extra: str, module: str) -> int:
    """Run `main()` of `module` as the console script `script`, and return its exit status.

    Refuses, with a sentence on stderr and status 2, when one of the three packages comes from elsewhere than the
    distribution, or when a library of `extra` is missing.
    """
    foreign = foreign_packages()
    if foreign:
        sentences = "; ".join(_foreign_sentence(name, path) for name, path in foreign.items())
        return _refuse(f"{script} refuses to start: {sentences}")
    if os.environ.pop(LIFELINE_VARIABLE, None):
        threading.Thread(target=_end_with_parent, name="lifeline", daemon=True).start()
    try:
        main: Callable[[], int] = import_module(module).main
    except ModuleNotFoundError as missing:
        library = (missing.name or "").partition(".")[0]
        if library in PACKAGES:
            raise
        remedy = f"pip install '{DISTRIBUTION}[{extra}]'"
        return _refuse(f"{script} needs the extra `{extra}`: {remedy} (`{library}` is not installed)")
    return main()


def foreign_packages() -> dict[str, Path | None]:
    """Those of our packages that Python would import from elsewhere than `home()`, with the place; None: not at all."""
    places = {name: place_of(name) for name in PACKAGES}
    return {name: place for name, place in places.items() if place is None or place.parent != home()}


def home() -> Path:
    """The directory that holds our packages: site-packages, or the checkout of an editable or missing installation."""
    try:
        distribution = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return Path(__file__).resolve().parent.parent
    root = _editable_root(distribution.read_text("direct_url.json"))
    return (root or Path(str(distribution.locate_file("")))).resolve()


def place_of(name: str) -> Path | None:
    """Where `import name` would find the package, without importing it; None when it would find nothing."""
    spec = find_spec(name)
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).resolve()
    return Path(spec.origin).resolve() if spec.origin else None


def _editable_root(direct_url: str | None) -> Path | None:
    record = json.loads(direct_url) if direct_url else {}
    if not record.get("dir_info", {}).get("editable"):
        return None
    return Path(url2pathname(urlparse(record["url"]).path))


def _foreign_sentence(name: str, place: Path | None) -> str:
    if place is None:
        return f"the package `{name}` is not installed; it belongs in {home()}"
    return (
        f"the package `{name}` is imported from {place}, not from {home()} where {DISTRIBUTION} is installed; "
        f"install {DISTRIBUTION} in an environment of its own, or take {place.parent} off PYTHONPATH"
    )


def _refuse(sentence: str) -> int:
    sys.stderr.write(f"{sentence}\n")
    return USAGE_ERROR


def _end_with_parent() -> None:
    """Stop this process when its parent is gone, however it went: the kernel then closes the other end of our stdin."""
    standard_input = 0
    while os.read(standard_input, 4096):
        pass  # Nothing is ever written; only the end matters.
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ORPHAN_GRACE_S)
    os.killpg(os.getpgrp(), signal.SIGKILL)  # The session is ours alone, so this takes our own children along.
