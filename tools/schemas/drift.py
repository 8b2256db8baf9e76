"""Whether the files of schemas/generated are what the types say."""

from pathlib import Path

from msgspec import Struct

from tools.schemas.artefacts import Files, all_files, read_folder, write_folder
from tools.schemas.catalogue import GENERATED, RELEASED


class Drift(Struct, frozen=True):
    """Paths under the folder: `changed` differ, `missing` are not there, `unexpected` are made by nothing any more."""

    changed: list[str]
    missing: list[str]
    unexpected: list[str]

    def __bool__(self) -> bool:
        return bool(self.changed or self.missing or self.unexpected)


def drift(folder: Path = GENERATED) -> Drift:
    """What `write` would do."""
    made, there = all_files(), _on_disk(folder)
    return Drift(
        changed=[name for name in sorted(made) if name in there and there[name] != made[name]],
        missing=sorted(set(made) - set(there)),
        unexpected=sorted(set(there) - set(made)),
    )


def write(folder: Path = GENERATED) -> Drift:
    """Bring the folder up to date and say what was done. Snapshots of releases are left as they are."""
    done = drift(folder)
    made = all_files()
    write_folder(folder, {name: made[name] for name in (*done.changed, *done.missing)})
    for name in done.unexpected:
        (folder / name).unlink()
    return done


def _on_disk(folder: Path) -> Files:
    return {name: data for name, data in read_folder(folder).items() if not name.startswith(f"{RELEASED}/")}
