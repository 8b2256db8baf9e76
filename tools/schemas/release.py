"""Snapshots of what was released, which today's types are held against; and the writing of the next."""

import re
from pathlib import Path
from typing import Final

from tools.schemas.artefacts import DESCRIPTOR, Files, read_folder, snapshot_files, write_folder
from tools.schemas.catalogue import GENERATED, MESSAGES, RELEASED, reachable
from tools.schemas.changes import Change, covers, order_of
from tools.schemas.channel_compat import channel_findings
from tools.schemas.compat import schema_findings, schemas_of
from tools.schemas.finding import Finding, Rule
from tools.schemas.frames import frame_findings

_VERSION: Final = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)")


class ReleaseRefused(Exception):
    """A snapshot was not written; the message says why."""


def versions(folder: Path = GENERATED) -> list[str]:
    """The released versions that have a snapshot, the oldest first."""
    found = [path.name for path in (folder / RELEASED).glob("*") if _VERSION.fullmatch(path.name)]
    return sorted(found, key=order_of)


def snapshot(version: str, folder: Path = GENERATED) -> Files:
    """The files of a release."""
    return read_folder(folder / RELEASED / version)


def findings(changes: list[Change], folder: Path = GENERATED) -> tuple[list[Finding], list[Change]]:
    """What breaks a released peer and is not declared, and the declarations that nothing needs.

    Schemas are compared with the last release; frames and channel numbers with every one.
    """
    *earlier, last = versions(folder)
    today = snapshot_files()
    found = [(last, finding) for finding in _last_findings(snapshot(last, folder), today)]
    for version in earlier:
        found += [(version, finding) for finding in _earlier_findings(snapshot(version, folder), today)]
    undeclared = [
        finding for version, finding in found if not any(covers(change, finding, version) for change in changes)
    ]
    needed = {change for change in changes for version, finding in found if covers(change, finding, version)}
    return undeclared, [change for change in changes if change.after == last and change not in needed]


def _last_findings(released: Files, today: Files) -> list[Finding]:
    types = schema_findings(schemas_of(released), schemas_of(today))
    changed = {finding.type for finding in types}
    # A frame that differs because a type in it does is not said twice.
    frames = [made for made in frame_findings(released) if not reachable(MESSAGES[made.type]) & changed]
    return [*types, *channel_findings(released[DESCRIPTOR], today[DESCRIPTOR]), *frames]


def _earlier_findings(released: Files, today: Files) -> list[Finding]:
    channel = channel_findings(released[DESCRIPTOR], today[DESCRIPTOR])
    return [*frame_findings(released), *(made for made in channel if made.rule is Rule.REUSED_NUMBER)]


def release(version: str, changes: list[Change], folder: Path = GENERATED) -> Path:
    """Write the snapshot of a version and say where. Raises ReleaseRefused."""
    if not _VERSION.fullmatch(version):
        raise ReleaseRefused(f"'{version}' is not a version: write it as VERSION=1.2.3")
    target, known = folder / RELEASED / version, versions(folder)
    if target.exists():
        raise ReleaseRefused(f"{version} is released: a snapshot is never written twice")
    if known and order_of(version) < order_of(known[-1]):
        raise ReleaseRefused(f"{version} is older than {known[-1]}, which is released")
    if known and any(findings(changes, folder)):
        raise ReleaseRefused("the types break a rule that is not declared; see make schemas-compat")
    write_folder(target, snapshot_files())
    return target
