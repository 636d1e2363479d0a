# SPDX-License-Identifier: Apache-2.0
"""What a driver made with Kubernetes' helper library asks an API server for, on a node without one.

Its slices are kept here and on the disk; claims are those that kepd allocated. A driver sees what is its own: its token
says which it is. Nothing else is served.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import msgspec
import structlog

from agent.model.clock import Clock
from agent.model.finding import printable
from agent.model.pods.wall_clock import stamp
from agent.model.text.records import RecordFiles
from kepd_devices.manifest.documents import Reader
from kepd_devices.manifest.objects import Slice
from kepd_devices.manifest.reading import read_device_objects
from kepd_devices.plan.driver_store import (
    ADDED,
    GROUP_VERSION,
    KIND,
    ApiRefusal,
    DriverStore,
    StoredSlice,
)
from kepd_devices.plan.records import ClaimRecord

log = structlog.get_logger(plane="devices")

FOLDER = "slices"
GROUP, VERSION = GROUP_VERSION.split("/")
SUFFIX, SUFFIX_SIGNS = 5, "bcdfghjklmnpqrstvwxz2456789"
BOOKMARK_S = 60.0
LONGEST_WATCH_S, SHORTEST_WATCH_S = 600.0, 1.0
INITIAL_END = {"k8s.io/initial-events-end": "true"}
Document = dict[str, Any]
Query = Mapping[str, str]
RESOURCES = (
    ("resourceslices", KIND, False, ("create", "delete", "get", "list", "update", "watch")),
    ("resourceclaims", "ResourceClaim", True, ("get",)),
    ("resourceclaims/status", "ResourceClaim", True, ("update",)),
)


class ApiRequest(msgspec.Struct, frozen=True):
    """`driver` is whose token it came with; `path` has no slash at its end."""

    driver: str
    method: str
    path: str
    query: Query = {}
    body: bytes = b""


class DriverApi:
    def __init__(
        self, files: RecordFiles, clock: Clock, node: str, records: Callable[[], Mapping[str, ClaimRecord]]
    ) -> None:
        self._files = files
        self._clock = clock
        self._node = node
        self._records = records
        self._reader = Reader(node)
        self._store = DriverStore(int(clock.wall_s()) * 1000)
        self._bell = asyncio.Event()
        # What drivers say of devices of claims, by uid of the claim and driver.
        self._said: dict[tuple[str, str], Any] = {}
        self.changed: Callable[[], None] = lambda: None

    async def load(self) -> None:
        """What cannot be read is written anew by its driver."""
        for name, content in (await self._files.read_folder(FOLDER)).items():
            try:
                document = msgspec.json.decode(content)
                self._store.load(StoredSlice(document, self._read(document)))
            except (ValueError, ApiRefusal, KeyError, TypeError, AttributeError) as error:
                log.warning("slice_unreadable", file=name, error=str(error))

    def slices(self) -> list[Slice]:
        return self._store.slices

    async def answer(self, ask: ApiRequest) -> tuple[int, Document]:
        """Raises ApiRefusal."""
        parts = [one for one in ask.path.split("/") if one]
        match ask.method, parts:
            case "GET", [*_] if (found := self._discovered(parts)) is not None:
                return 200, found
            case "GET", ["api", "v1", "nodes", self._node]:
                return 200, self._node_document()
            case "GET", ["apis", "resource.k8s.io", "v1", "resourceslices"]:
                return 200, self._list(ask)
            case "POST", ["apis", "resource.k8s.io", "v1", "resourceslices"]:
                return 201, await self._create(ask)
            case "GET", ["apis", "resource.k8s.io", "v1", "resourceslices", name]:
                return 200, self._store.get(ask.driver, name).document
            case "PUT", ["apis", "resource.k8s.io", "v1", "resourceslices", name]:
                return 200, await self._update(ask, name)
            case "DELETE", ["apis", "resource.k8s.io", "v1", "resourceslices", name]:
                return 200, await self._delete(ask, name)
            case "GET", ["apis", "resource.k8s.io", "v1", "namespaces", namespace, "resourceclaims", name]:
                return 200, self._claim(ask.driver, namespace, name)
            case "PUT", ["apis", "resource.k8s.io", "v1", "namespaces", namespace, "resourceclaims", name, "status"]:
                return 200, self._take_status(ask, namespace, name)
        raise ApiRefusal(404, "NotFound", f"kepd serves no {ask.method} {printable(ask.path)[:200]} to drivers")

    def _discovered(self, parts: list[str]) -> Document | None:
        version = {"groupVersion": GROUP_VERSION, "version": VERSION}
        group = {"name": GROUP, "versions": [version], "preferredVersion": version}
        match parts:
            case ["version"]:
                return {"major": "1", "minor": "36", "gitVersion": "v1.36.0+kepd", "platform": "linux"}
            case ["api"]:
                return {"kind": "APIVersions", "versions": ["v1"]}
            case ["api", "v1"]:
                node = {"name": "nodes", "singularName": "node", "namespaced": False, "kind": "Node", "verbs": ["get"]}
                return {"kind": "APIResourceList", "groupVersion": "v1", "resources": [node]}
            case ["apis"]:
                return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]}
            case ["apis", "resource.k8s.io"]:
                return {"kind": "APIGroup", "apiVersion": "v1", **group}
            case ["apis", "resource.k8s.io", "v1"]:
                found = [
                    {"name": name, "singularName": "", "namespaced": namespaced, "kind": kind, "verbs": list(verbs)}
                    for name, kind, namespaced, verbs in RESOURCES
                ]
                return {
                    "kind": "APIResourceList",
                    "apiVersion": "v1",
                    "groupVersion": GROUP_VERSION,
                    "resources": found,
                }
        return None

    def _node_document(self) -> Document:
        metadata = {"name": self._node, "uid": str(uuid5(NAMESPACE_URL, f"kepd.dev/nodes/{self._node}"))}
        return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {}, "status": {}}

    def _list(self, ask: ApiRequest) -> Document:
        items = [one.document for one in self._store.of(ask.driver) if self._is_meant(ask, one.document)]
        return {
            "apiVersion": GROUP_VERSION, "kind": f"{KIND}List",
            "metadata": {"resourceVersion": str(self._store.version)}, "items": items,
        }  # fmt: skip

    def _is_meant(self, ask: ApiRequest, document: Document) -> bool:
        """By `fieldSelector`. Raises ApiRefusal for a field that cannot be asked for."""
        spec = document["spec"]
        fields = {
            "spec.driver": spec["driver"], "spec.nodeName": spec.get("nodeName", ""),
            "metadata.name": document["metadata"]["name"],
        }  # fmt: skip
        for term in filter(None, ask.query.get("fieldSelector", "").split(",")):
            name, _, wanted = term.replace("==", "=").partition("=")
            if name not in fields:
                raise ApiRefusal(400, "BadRequest", f"field {printable(name)[:80]} cannot be selected by")
            if fields[name] != wanted:
                return False
        return True

    async def watch(self, ask: ApiRequest) -> AsyncIterator[Document]:
        """Events, until the time that was asked for is over. Raises ApiRefusal before the first."""
        until_s = self._clock.now_s() + _watch_limit(ask.query)
        takes_bookmarks = ask.query.get("allowWatchBookmarks") in ("true", "1")
        given = ask.query.get("resourceVersion", "")
        if given and not given.isdecimal():
            raise ApiRefusal(400, "BadRequest", f"resourceVersion {printable(given)[:80]} is no number")
        version = int(given or 0)
        if not version or ask.query.get("sendInitialEvents") == "true":
            version = self._store.version
            for one in self._list(ask)["items"]:
                yield {"type": ADDED, "object": one}
            if ask.query.get("sendInitialEvents") == "true" and takes_bookmarks:
                yield _bookmark(version, INITIAL_END)
        while True:
            bell = self._bell
            for change in self._store.since(version, ask.driver):
                if self._is_meant(ask, change.document):
                    yield {"type": change.kind, "object": change.document}
            version = self._store.version
            left_s = until_s - self._clock.now_s()
            if left_s <= 0:
                return
            try:
                async with asyncio.timeout(min(left_s, BOOKMARK_S)):
                    await bell.wait()
            except TimeoutError:
                if takes_bookmarks:
                    yield _bookmark(version, {})

    async def _create(self, ask: ApiRequest) -> Document:
        document = self._given(ask)
        metadata = document["metadata"]
        if not metadata.get("name"):
            ending = "".join(secrets.choice(SUFFIX_SIGNS) for _ in range(SUFFIX))
            metadata["name"] = f"{str(metadata.get('generateName') or '')[:248]}{ending}"
        name = str(metadata["name"])
        metadata["uid"] = str(uuid5(NAMESPACE_URL, f"{name}/{secrets.token_hex(8)}"))
        metadata["creationTimestamp"] = stamp(self._clock.wall_s())
        stored = self._store.create(StoredSlice(document, self._checked(ask.driver, document)))
        return await self._kept(stored)

    async def _update(self, ask: ApiRequest, name: str) -> Document:
        document = self._given(ask)
        version = str(document["metadata"].get("resourceVersion") or "")
        if document["metadata"].get("name") != name:
            raise ApiRefusal(400, "BadRequest", "the name of the object is not that of the address")
        self._store.get(ask.driver, name)
        return await self._kept(self._store.update(StoredSlice(document, self._checked(ask.driver, document)), version))

    async def _kept(self, stored: StoredSlice) -> Document:
        self._ring()
        await self._save(stored)
        return stored.document

    async def _save(self, stored: StoredSlice) -> None:
        """One that is not on the disk is there until the next start; its driver writes it anew then."""
        try:
            await self._files.write(f"{FOLDER}/{stored.name}.json", msgspec.json.encode(stored.document))
        except OSError as error:
            log.warning("slice_not_saved", slice=stored.name, error=str(error))

    async def _delete(self, ask: ApiRequest, name: str) -> Document:
        options = _decoded(ask.body) if ask.body else {}
        gone = self._store.delete(ask.driver, name, options.get("preconditions") or {})
        self._ring()
        await self._files.remove(f"{FOLDER}/{name}.json")
        return gone.document

    def _ring(self) -> None:
        bell, self._bell = self._bell, asyncio.Event()
        bell.set()
        self.changed()

    def _given(self, ask: ApiRequest) -> Document:
        document = _decoded(ask.body)
        if document.get("kind") not in (None, KIND) or document.get("apiVersion") not in (None, GROUP_VERSION):
            raise ApiRefusal(400, "BadRequest", f"expected a {KIND} of {GROUP_VERSION}")
        metadata = document.get("metadata")
        if not isinstance(metadata, dict):
            raise ApiRefusal(422, "Invalid", "metadata: Required value")
        return {**document, "apiVersion": GROUP_VERSION, "kind": KIND, "metadata": dict(metadata)}

    def _checked(self, driver: str, document: Document) -> Slice:
        found = self._read(document)
        if found.spec.driver != driver:
            raise ApiRefusal(403, "Forbidden", f"the token of {driver} may write no slices of another driver")
        if found.spec.node_name not in (None, "", self._node):
            raise ApiRefusal(403, "Forbidden", f"slices here are for node {self._node} or for no node by name")
        return found

    def _read(self, document: Document) -> Slice:
        """By the rules of manifests. Raises ApiRefusal."""
        name = str(document["metadata"]["name"])
        plain = {**document, "metadata": {"name": name}}
        objects = read_device_objects({name: msgspec.json.encode(plain)}, self._reader)
        if objects.findings or not objects.slices:
            told = "; ".join(f"{one.path}: {one.text}" for one in objects.findings) or "it is no slice"
            raise ApiRefusal(422, "Invalid", f'ResourceSlice "{printable(name)}" is invalid: {printable(told)[:2000]}')
        return objects.slices[0]

    def _record(self, driver: str, namespace: str, name: str) -> ClaimRecord:
        """A claim that has devices of the driver; of others it learns nothing."""
        for record in self._records().values():
            if record.key == f"{namespace}/{name}" and driver in record.drivers:
                return record
        raise ApiRefusal(404, "NotFound", f'resourceclaims.resource.k8s.io "{printable(name)[:253]}" not found')

    def _claim(self, driver: str, namespace: str, name: str) -> Document:
        record = self._record(driver, namespace, name)
        claim: Document = msgspec.to_builtins(record.claim)
        holders = [{"resource": "pods", "name": one.name, "uid": one.uid} for one in record.holders]
        status = {**claim.get("status", {}), "reservedFor": holders}
        if devices := self._said.get((record.uid, driver)):
            status["devices"] = devices
        metadata = {**claim["metadata"], "resourceVersion": str(self._store.version)}
        return {**claim, "apiVersion": GROUP_VERSION, "kind": "ResourceClaim", "metadata": metadata, "status": status}

    def _take_status(self, ask: ApiRequest, namespace: str, name: str) -> Document:
        """What the driver says of its own devices; whatever else it sends changes nothing."""
        record = self._record(ask.driver, namespace, name)
        status = _decoded(ask.body).get("status")
        devices = status.get("devices") if isinstance(status, dict) else None
        own = [one for one in devices or () if isinstance(one, dict) and one.get("driver") == ask.driver]
        self._said = {key: one for key, one in self._said.items() if key[0] in self._records()}
        self._said[record.uid, ask.driver] = own[:32]
        return self._claim(ask.driver, namespace, name)


def refusal(code: int, reason: str, text: str) -> Document:
    """As an API server writes it."""
    return {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": text, "reason": reason,
        "code": code,
    }  # fmt: skip


def _decoded(body: bytes) -> Document:
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ApiRefusal(400, "BadRequest", f"the body is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ApiRefusal(400, "BadRequest", "the body is no object")
    return found


def _bookmark(version: int, annotations: Mapping[str, str]) -> Document:
    metadata = {"resourceVersion": str(version), **({"annotations": dict(annotations)} if annotations else {})}
    # An empty spec: clients decode it as a slice.
    made = {"kind": KIND, "apiVersion": GROUP_VERSION, "metadata": metadata, "spec": {"driver": "", "pool": {
        "name": "", "generation": 0, "resourceSliceCount": 0}}}  # fmt: skip
    return {"type": "BOOKMARK", "object": made}


def _watch_limit(query: Query) -> float:
    given = query.get("timeoutSeconds", "")
    asked_s = float(given) if given.isdecimal() else LONGEST_WATCH_S
    return min(max(asked_s, SHORTEST_WATCH_S), LONGEST_WATCH_S)
