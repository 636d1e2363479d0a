# SPDX-License-Identifier: Apache-2.0
"""Slices that drivers write as to an API server: one version for all, the changes of a while, and conflicts.

A version begins with the time of the start, so one of an earlier life is never taken for one of this. Pure.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from kepd_devices.manifest.objects import Slice

GROUP_VERSION, KIND = "resource.k8s.io/v1", "ResourceSlice"
MOST_SLICES, MOST_CHANGES = 256, 1000
ADDED, MODIFIED, DELETED = "ADDED", "MODIFIED", "DELETED"
Document = Mapping[str, Any]


class ApiRefusal(Exception):
    """As an API server says it: `code` of HTTP and `reason` of Kubernetes."""

    def __init__(self, code: int, reason: str, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.reason = reason


class StoredSlice(msgspec.Struct, frozen=True):
    """`document` has its metadata as it is told; `found` is what kepd searches in."""

    document: dict[str, Any]
    found: Slice

    @property
    def name(self) -> str:
        return self.found.metadata.name

    @property
    def driver(self) -> str:
        return self.found.spec.driver

    @property
    def version(self) -> int:
        return int(self.document["metadata"]["resourceVersion"])


class StoreChange(msgspec.Struct, frozen=True):
    kind: str
    version: int
    driver: str
    document: dict[str, Any]


class DriverStore:
    def __init__(self, version: int) -> None:
        self.version = version
        self._slices: dict[str, StoredSlice] = {}
        self._changes: deque[StoreChange] = deque(maxlen=MOST_CHANGES)
        # What is older is not remembered.
        self._first = version

    def load(self, stored: StoredSlice) -> None:
        """Of an earlier life: there, and no change."""
        self._slices[stored.name] = _at(stored, self.version)

    def of(self, driver: str) -> list[StoredSlice]:
        return [one for _, one in sorted(self._slices.items()) if one.driver == driver]

    @property
    def slices(self) -> list[Slice]:
        return [one.found for _, one in sorted(self._slices.items())]

    def get(self, driver: str, name: str) -> StoredSlice:
        found = self._slices.get(name)
        if found is None or found.driver != driver:
            raise ApiRefusal(404, "NotFound", f'resourceslices.resource.k8s.io "{name}" not found')
        return found

    def create(self, stored: StoredSlice) -> StoredSlice:
        if stored.name in self._slices:
            raise ApiRefusal(409, "AlreadyExists", f'resourceslices.resource.k8s.io "{stored.name}" already exists')
        if len(self.of(stored.driver)) >= MOST_SLICES:
            raise ApiRefusal(403, "Forbidden", f"driver {stored.driver} has {MOST_SLICES} slices, the most that it may")
        return self._put(ADDED, stored)

    def update(self, stored: StoredSlice, version: str) -> StoredSlice:
        """`version` is that which its writer saw; none overwrites."""
        before = self.get(stored.driver, stored.name)
        if version and version != str(before.version):
            text = f'Operation cannot be fulfilled on resourceslices.resource.k8s.io "{stored.name}":'
            text += " the object has been modified; please apply your changes to the latest version"
            raise ApiRefusal(409, "Conflict", text)
        kept = {key: before.document["metadata"][key] for key in ("uid", "creationTimestamp")}
        document = {**stored.document, "metadata": {**stored.document["metadata"], **kept}}
        return self._put(MODIFIED, StoredSlice(document, stored.found))

    def delete(self, driver: str, name: str, preconditions: Document) -> StoredSlice:
        before = self.get(driver, name)
        metadata = before.document["metadata"]
        for key, told in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
            wanted = preconditions.get(key)
            if wanted and wanted != metadata[key]:
                text = f"Precondition failed: {told} in precondition: {wanted}, {told} in object meta: {metadata[key]}"
                raise ApiRefusal(409, "Conflict", text)
        self.version += 1
        gone = _at(before, self.version)
        del self._slices[name]
        self._note(DELETED, gone)
        return gone

    def _put(self, kind: str, stored: StoredSlice) -> StoredSlice:
        self.version += 1
        now = _at(stored, self.version)
        self._slices[now.name] = now
        self._note(kind, now)
        return now

    def _note(self, kind: str, stored: StoredSlice) -> None:
        if len(self._changes) == MOST_CHANGES:
            self._first = self._changes[0].version
        self._changes.append(StoreChange(kind, stored.version, stored.driver, stored.document))

    def since(self, version: int, driver: str) -> Iterator[StoreChange]:
        """Raises ApiRefusal where it is not remembered."""
        if not self._first <= version <= self.version:
            raise ApiRefusal(410, "Expired", f"too old resource version: {version} ({self._first})")
        for one in self._changes:
            if one.version > version and one.driver == driver:
                yield one


def _at(stored: StoredSlice, version: int) -> StoredSlice:
    metadata = {**stored.document["metadata"], "resourceVersion": str(version)}
    return StoredSlice({**stored.document, "metadata": metadata}, stored.found)
