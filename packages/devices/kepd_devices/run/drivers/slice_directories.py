# SPDX-License-Identifier: Apache-2.0
"""Slices that drivers leave in directories: one for each driver, in which `current` is a link to the files of now.

    DIRECTORY/DRIVER/          of root, closed to others
    DIRECTORY/DRIVER/v7/*.json
    DIRECTORY/DRIVER/current → v7     made anew and renamed: all of a pool changes at once

An update with a fault changes nothing: the last good one stays.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from agent.model.finding import Finding, shown
from kepd_devices.manifest.documents import Reader
from kepd_devices.manifest.faults import driver_name
from kepd_devices.manifest.objects import Slice
from kepd_devices.manifest.reading import read_device_objects

CURRENT = "current"
MOST_DRIVERS, MOST_FILES, MOST_BYTES = 64, 64, 1 << 20
CLOSED = stat.S_IRWXG | stat.S_IRWXO
Identity = tuple[int, int]


class NotUsable(Exception):
    """Why a directory, or what is in it, does not count."""


class _Update(msgspec.Struct, frozen=True):
    """What `current` led to when it was read, what came of it, and what stays in force."""

    identity: Identity | None = None
    slices: tuple[Slice, ...] = ()
    findings: tuple[Finding, ...] = ()


class SliceDirectories:
    """`owner` is whose the directories have to be."""

    def __init__(self, place: Path, reader: Reader, owner: int = 0) -> None:
        self._place = place
        self._reader = reader
        self._owner = owner
        self._known: dict[str, _Update] = {}
        self._problems: tuple[Finding, ...] = ()

    def slices(self) -> Sequence[Slice]:
        return [slice_ for one in self._known.values() for slice_ in one.slices]

    @property
    def findings(self) -> tuple[Finding, ...]:
        return (*self._problems, *(finding for one in self._known.values() for finding in one.findings))

    def look(self) -> bool:
        """Whether anything changed. Blocking."""
        before = (self._known, self._problems)
        problems: list[Finding] = []
        found: dict[str, _Update] = {}
        for path in self._directories(problems):
            known = self._known.get(path.name, _Update())
            found[path.name] = self._look_at(path, known)
        self._known, self._problems = found, tuple(problems)
        return before != (self._known, self._problems)

    def _directories(self, problems: list[Finding]) -> Iterator[Path]:
        try:
            paths = sorted(one for one in self._place.iterdir() if not one.name.startswith("."))
        except FileNotFoundError:
            return
        except OSError as error:
            problems.append(Finding(str(self._place), "", f"cannot be read: {error.strerror}"))
            return
        if len(paths) > MOST_DRIVERS:
            problems.append(Finding(str(self._place), "", f"has {len(paths)} entries; the first {MOST_DRIVERS} count"))
        yield from paths[:MOST_DRIVERS]

    def _look_at(self, path: Path, known: _Update) -> _Update:
        try:
            self._check(path)
            target = self._target(path)
            if target is None:
                return _Update()
            facts = target.lstat()
            identity = (facts.st_ino, facts.st_ctime_ns)
            if identity == known.identity:
                return known
            slices, findings = self._read(path.name, target)
        except (OSError, NotUsable) as error:
            text = str(error) if isinstance(error, NotUsable) else f"cannot be read: {error.strerror or error}"
            return msgspec.structs.replace(known, identity=None, findings=(Finding(str(path), "", text),))
        if findings:
            # Looked at again when `current` is another.
            return _Update(identity, known.slices, findings)
        return _Update(identity, slices)

    def _check(self, path: Path) -> None:
        if faults := list(driver_name(path.name, "name")):
            raise NotUsable(f"{faults[0].text}; expected a directory with the name of a driver")
        facts = path.lstat()
        if not stat.S_ISDIR(facts.st_mode):
            raise NotUsable("is no directory")
        if facts.st_uid != self._owner:
            raise NotUsable(f"belongs to user {facts.st_uid}; expected root")
        if stat.S_IMODE(facts.st_mode) & CLOSED:
            raise NotUsable("is open to others than its owner; use chmod 0700")

    def _target(self, path: Path) -> Path | None:
        with suppress(FileNotFoundError):
            link = str((path / CURRENT).readlink())
            if "/" in link.rstrip("/") or link in ("", ".", ".."):
                raise NotUsable(f"{CURRENT} leads to {shown(link)}; expected the name of a directory beside it")
            return path / link.rstrip("/")
        return None

    def _read(self, driver: str, target: Path) -> tuple[tuple[Slice, ...], tuple[Finding, ...]]:
        names = sorted(one.name for one in target.iterdir() if one.suffix == ".json" and not one.name.startswith("."))
        if len(names) > MOST_FILES:
            raise NotUsable(f"{target.name} has {len(names)} files; expected at most {MOST_FILES}")
        files = {str(target / name): _content(target / name) for name in names}
        objects = read_device_objects(files, self._reader)
        findings = list(objects.findings)
        for one in objects.slices:
            if one.spec.driver != driver:
                where = objects.places["ResourceSlice", "", one.metadata.name]
                findings.append(Finding(where, "spec.driver", f"{shown(one.spec.driver)} is not {driver}"))
        if objects.claims or objects.templates or objects.classes:
            findings.append(Finding(str(target), "kind", "expected slices alone; other kinds belong to the manifests"))
        return objects.slices, tuple(findings)


def _content(path: Path) -> bytes:
    """Of a regular file, and not through a link. Raises OSError and NotUsable."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise NotUsable(f"{path.name} is no regular file")
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise NotUsable(f"{path.name} has more than {MOST_BYTES} bytes")
    return content
