"""What make runs: `python -m tools.schemas write | check | compat | release VERSION`. Exit status 1: something is wrong."""

import sys
from collections.abc import Iterable
from pathlib import Path

from tools.schemas.catalogue import GENERATED, ROOT
from tools.schemas.changes import PATH as CHANGES
from tools.schemas.changes import declared
from tools.schemas.drift import Drift, drift, write
from tools.schemas.release import ReleaseRefused, findings, release, versions


def main(arguments: list[str]) -> int:
    """Run one command."""
    match arguments:
        case ["write"]:
            return _say(_drift_lines(write()) or ["schemas/generated is up to date"])
        case ["check"]:
            return _check()
        case ["compat"]:
            return _compat()
        case ["release", version]:
            return _release(version)
    sys.stderr.write(f"{__doc__}\n")
    return 2


def _check() -> int:
    stale = drift()
    if not stale:
        return 0
    lines = [
        "schemas/generated is not what the types say:",
        *_drift_lines(stale),
        "Run `make schemas`, and commit them.",
    ]
    # The rule that was broken belongs to the same message: make stops at the first target that fails.
    return _complain([*lines, *_compat_lines()])


def _compat() -> int:
    lines = _compat_lines()
    return _complain(lines) if lines else 0


def _compat_lines() -> list[str]:
    if not versions():
        return ["There is no snapshot of a release: run `make release VERSION=0.1.0`."]
    undeclared, unneeded = findings(declared())
    lines: list[str] = []
    if undeclared:
        last = versions()[-1]
        lines += [f"The types would break a peer of release {last}:", *(f"  {finding}" for finding in undeclared)]
        lines.append(f'Undo it, or declare it in {_named(CHANGES)} (after = "{last}", type, field, rule, reason).')
    lines += [f"{_named(CHANGES)} declares what is not so: {made.type}.{made.field}, {made.rule}" for made in unneeded]
    return lines


def _release(version: str) -> int:
    if drift():
        return _complain(["schemas/generated is not what the types say: run `make schemas` first"])
    try:
        return _say([f"wrote {_named(release(version, declared()))}"])
    except ReleaseRefused as error:
        return _complain([str(error)])


def _drift_lines(stale: Drift) -> list[str]:
    kinds = {"changed": stale.changed, "new": stale.missing, "obsolete": stale.unexpected}
    return [f"  {kind:9}{_named(GENERATED / name)}" for kind, names in kinds.items() for name in names]


def _named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _say(lines: Iterable[str]) -> int:
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return 0


def _complain(lines: Iterable[str]) -> int:
    sys.stderr.writelines(f"{line}\n" for line in lines)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
