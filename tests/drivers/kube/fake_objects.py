# SPDX-License-Identifier: Apache-2.0
"""Objects in memory with versions and a history, as an API server keeps them. For tests.

The fake client and the test API server both stand on it, so that they cannot disagree. Time stamps and uids are made
up.
"""

import asyncio
import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import msgspec

from agent.model.selector import Matcher, Requirement

Json = dict[str, Any]

SET_REQUIREMENT = re.compile(r"(?P<key>\S+)\s+(?P<operator>in|notin)\s*\((?P<values>[^)]*)\)\Z")
FIELD = re.compile(r"(?P<path>[^=!]+)(?P<operator>==|=|!=)(?P<value>[^=!]*)\Z")
OUTSIDE_BRACKETS = re.compile(r",(?![^(]*\))")
META_FIELDS = ("metadata.name", "metadata.namespace")
EVERYTHING = Matcher()


class StoreRefusal(Exception):
    def __init__(self, code: int, reason: str, message: str, details: Json | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.body: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        self.body |= {"message": message, "reason": reason}
        if details is not None:
            self.body["details"] = details
        self.body["code"] = code


class StoredKind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind the store knows. `blank` is what a bookmark has beside its metadata."""

    group: str = ""
    version: str = "v1"
    plural: str
    kind: str
    has_namespace: bool = True
    fields: tuple[str, ...] = ()
    blank: Mapping[str, Any] = msgspec.field(default_factory=dict)

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def details(self, name: str = "") -> Json:
        parts = {"name": name, "group": self.group, "kind": self.plural}
        return {key: value for key, value in parts.items() if value}


KINDS = {
    kind.plural: kind
    for kind in (
        StoredKind(
            plural="services",
            kind="Service",
            fields=("spec.clusterIP", "spec.type"),
            blank={"spec": {}, "status": {"loadBalancer": {}}},
        ),
        StoredKind(
            group="discovery.k8s.io",
            plural="endpointslices",
            kind="EndpointSlice",
            blank={"addressType": "", "endpoints": None, "ports": None},
        ),
        StoredKind(
            plural="nodes", kind="Node", has_namespace=False, fields=("spec.unschedulable",), blank={"spec": {}}
        ),
        StoredKind(
            plural="pods",
            kind="Pod",
            fields=("spec.nodeName", "status.phase"),
            blank={"spec": {"containers": None}, "status": {}},
        ),
        StoredKind(group="apps", plural="deployments", kind="Deployment"),
        StoredKind(group="apps", plural="daemonsets", kind="DaemonSet"),
        StoredKind(group="apps", plural="replicasets", kind="ReplicaSet"),
        StoredKind(group="apps", plural="statefulsets", kind="StatefulSet"),
        StoredKind(plural="replicationcontrollers", kind="ReplicationController"),
        StoredKind(group="policy", plural="poddisruptionbudgets", kind="PodDisruptionBudget"),
        StoredKind(group="networking.k8s.io", plural="servicecidrs", kind="ServiceCIDR", has_namespace=False),
        StoredKind(
            group="resource.k8s.io",
            plural="resourceslices",
            kind="ResourceSlice",
            has_namespace=False,
            fields=("spec.driver", "spec.nodeName"),
        ),
        StoredKind(group="resource.k8s.io", plural="resourceclaims", kind="ResourceClaim"),
        StoredKind(group="events.k8s.io", plural="events", kind="Event", fields=("reason", "regarding.name")),
    )
}


class FieldTest(msgspec.Struct, frozen=True):
    path: str
    is_negated: bool
    value: str

    def holds(self, stored: Json) -> bool:
        """Absent fields are empty texts."""
        value: Any = stored
        for part in self.path.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return (str(value if value is not None else "") == self.value) is not self.is_negated


class ObjectSelection(msgspec.Struct, frozen=True):
    namespace: str = ""
    labels: Matcher = EVERYTHING
    fields: tuple[FieldTest, ...] = ()

    def holds(self, stored: Json | None) -> bool:
        if stored is None:
            return False
        meta = stored["metadata"]
        if self.namespace and meta.get("namespace", "") != self.namespace:
            return False
        return self.labels.matches(meta.get("labels") or {}) and all(term.holds(stored) for term in self.fields)


def read_selection(kind: StoredKind, namespace: str, label_selector: str, field_selector: str) -> ObjectSelection:
    """Selectors as a query carries them. Raises StoreRefusal."""
    terms = [term.strip() for term in OUTSIDE_BRACKETS.split(label_selector) if term.strip()]
    fields = tuple(_field_test(kind, term) for term in field_selector.split(",") if term)
    return ObjectSelection(namespace, Matcher(tuple(_requirement(term) for term in terms)), fields)


def _requirement(term: str) -> Requirement:
    found = SET_REQUIREMENT.match(term)
    if found:
        values = tuple(value.strip() for value in found["values"].split(","))
        return Requirement(found["key"], "In" if found["operator"] == "in" else "NotIn", values)
    if term.startswith("!"):
        return Requirement(term[1:], "DoesNotExist")
    if "=" not in term:
        return Requirement(term, "Exists")
    key, _, value = term.partition("!=" if "!=" in term else "=")
    return Requirement(key.strip(), "NotIn" if "!=" in term else "In", (value.removeprefix("=").strip(),))


def _field_test(kind: StoredKind, term: str) -> FieldTest:
    found = FIELD.match(term)
    if found is None:
        raise StoreRefusal(400, "BadRequest", f"invalid field selector: {term}")
    if found["path"] not in (*META_FIELDS, *kind.fields):
        message = (
            f'Unable to find "{kind.api_version}, Resource={kind.plural}" that match label selector "", field selector '
            f'"{term}": field label not supported: {found["path"]}'
        )
        raise StoreRefusal(400, "BadRequest", message)
    return FieldTest(found["path"], found["operator"] == "!=", found["value"])


class HistoryEntry(msgspec.Struct, frozen=True):
    """One change. `before` is None for a new object, `after` for one that is gone."""

    resource_version: int
    plural: str
    before: Json | None
    after: Json | None

    def seen_by(self, selection: ObjectSelection) -> str | None:
        """The type of event it is for those who watch this selection; None: nothing happened for them."""
        was, is_now = selection.holds(self.before), selection.holds(self.after)
        if is_now:
            return "MODIFIED" if was else "ADDED"
        return "DELETED" if was else None

    def shown(self, change: str) -> Json:
        """The object in an event of that type: one that left the selection is shown as it was, at the new version."""
        if change != "DELETED" and self.after is not None:
            return self.after
        before = self.before or {}
        return {**before, "metadata": {**before["metadata"], "resourceVersion": str(self.resource_version)}}


class FakeObjects:
    """The store. Tests write it; whoever watches awaits `changed` with the `rings` it has seen."""

    def __init__(self, resource_version: int = 1000) -> None:
        self.resource_version = resource_version
        self.oldest = 0
        self.history: list[HistoryEntry] = []
        self.rings = 0
        self._objects: dict[str, dict[tuple[str, str], Json]] = {plural: {} for plural in KINDS}
        self._uids = count(1)
        self._bell: asyncio.Future[None] | None = None

    def load(self, plural: str, stored: Json) -> None:
        """An object exactly as it is, without any event."""
        self._objects[plural][_key(stored)] = copy.deepcopy(stored)

    def put(self, plural: str, given: Json, *, is_exact: bool = False) -> Json:
        """Create or replace. Version and uid are the store's, unless `is_exact`."""
        stored = copy.deepcopy(given)
        meta = stored.setdefault("metadata", {})
        if plural == "nodes" and not stored.get("spec", {}).get("taints", True):
            # An empty list is not stored.
            del stored["spec"]["taints"]
        before = self._objects[plural].get(_key(stored))
        if is_exact:
            self.resource_version = int(meta["resourceVersion"])
        else:
            self.resource_version += 1
            meta.setdefault("uid", before["metadata"]["uid"] if before else f"uid-{next(self._uids)}")
            meta["resourceVersion"] = str(self.resource_version)
            meta.setdefault("creationTimestamp", "2026-11-20T09:17:14Z")
        self._objects[plural][_key(stored)] = stored
        self._record(HistoryEntry(self.resource_version, plural, before, stored))
        return stored

    def create(self, plural: str, given: Json, namespace: str = "") -> Json:
        """A new object. Raises StoreRefusal if there is one of that name."""
        kind = KINDS[plural]
        stored = copy.deepcopy(given)
        meta = stored.setdefault("metadata", {})
        if kind.has_namespace:
            meta.setdefault("namespace", namespace)
        if "name" not in meta and "generateName" in meta:
            meta["name"] = f"{meta['generateName']}{next(self._uids):05d}"
        if "name" not in meta:
            message = f'{kind.kind} "" is invalid: metadata.name: Required value: name or generateName is required'
            raise StoreRefusal(422, "Invalid", message, kind.details())
        if _key(stored) in self._objects[plural]:
            message = f'{kind.qualified} "{meta["name"]}" already exists'
            raise StoreRefusal(409, "AlreadyExists", message, kind.details(meta["name"]))
        return self.put(plural, stored)

    def get(self, plural: str, namespace: str, name: str) -> Json:
        """One object. Raises StoreRefusal."""
        stored = self._objects[plural].get((namespace, name))
        if stored is None:
            kind = KINDS[plural]
            raise StoreRefusal(404, "NotFound", f'{kind.qualified} "{name}" not found', kind.details(name))
        return stored

    def patch(self, plural: str, namespace: str, name: str, change: object, content_type: str) -> Json:
        """A merge patch or JSON patch. Raises StoreRefusal."""
        stored = copy.deepcopy(self.get(plural, namespace, name))
        if content_type == "application/json-patch+json" and isinstance(change, list):
            for operation in change:
                _json_patched(stored, operation)
        elif content_type == "application/merge-patch+json" and isinstance(change, dict):
            asked = change.get("metadata", {}).get("resourceVersion")
            if asked not in (None, stored["metadata"]["resourceVersion"]):
                message = f'Operation cannot be fulfilled on {plural} "{name}": the object has been modified'
                raise StoreRefusal(409, "Conflict", message, KINDS[plural].details(name))
            stored = _merged(stored, change)
        else:
            raise StoreRefusal(
                415, "UnsupportedMediaType", f"the body of the request was in an unknown format: {content_type}"
            )
        return self.put(plural, stored)

    def delete(self, plural: str, namespace: str, name: str) -> None:
        """Raises StoreRefusal if it is not there."""
        before = self.get(plural, namespace, name)
        del self._objects[plural][namespace, name]
        self.resource_version += 1
        self._record(HistoryEntry(self.resource_version, plural, before, None))

    def compact(self) -> None:
        """Forget history: every version up to now is too old, only a new list helps."""
        self.resource_version += 1
        self.oldest = self.resource_version
        self.history.clear()
        self.ring()

    def select(self, plural: str, selection: ObjectSelection) -> list[Json]:
        stored = self._objects[plural]
        return [stored[key] for key in sorted(stored) if selection.holds(stored[key])]

    def since(self, plural: str, resource_version: int) -> Iterator[HistoryEntry]:
        return (entry for entry in self.history if entry.plural == plural and entry.resource_version > resource_version)

    async def changed(self, rings: int) -> None:
        """Until there were more than this many changes."""
        if self.rings > rings:
            return
        if self._bell is None or self._bell.done():
            self._bell = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._bell)

    def ring(self) -> None:
        self.rings += 1
        if self._bell is not None and not self._bell.done():
            self._bell.set_result(None)

    def _record(self, entry: HistoryEntry) -> None:
        self.history.append(entry)
        self.ring()


def event_object(kind: StoredKind, stored: Json) -> Json:
    """An object as a watch shows it: with kind and version, which lists leave out."""
    return {"kind": kind.kind, "apiVersion": kind.api_version, **stored}


def list_body(kind: StoredKind, items: Sequence[Json], metadata: Json) -> bytes:
    shown = [{key: value for key, value in item.items() if key not in ("kind", "apiVersion")} for item in items]
    body = {"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": metadata, "items": shown}
    return msgspec.json.encode(body)


def _key(stored: Json) -> tuple[str, str]:
    return stored["metadata"].get("namespace", ""), stored["metadata"]["name"]


def _merged(target: Json, change: Json) -> Json:
    merged = dict(target)
    for key, value in change.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            merged[key] = _merged(merged.get(key) or {}, value)
        else:
            merged[key] = value
    return merged


def _json_patched(stored: Json, operation: Json) -> None:
    *path, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
    place: Any = stored
    try:
        for part in path:
            place = place[int(part) if isinstance(place, list) else part]
        _json_changed(place, int(last) if isinstance(place, list) and last != "-" else last, operation)
    except (KeyError, IndexError, TypeError) as error:
        message = "the server rejected our request due to an error in our request"
        raise StoreRefusal(422, "Invalid", message) from error


def _json_changed(place: Any, key: Any, operation: Json) -> None:
    match operation["op"]:
        case "test" if operation["value"] is None and isinstance(place, dict) and place.get(key) is None:
            # As the library of the API server has it: what is not there is null.
            return
        case "test" if place[key] != operation["value"]:
            raise KeyError(key)
        case "test":
            return
        case "remove":
            del place[key]
        case "add" if isinstance(place, list):
            place.insert(len(place) if key == "-" else key, operation["value"])
        case _:
            place[key] = operation["value"]
