# SPDX-License-Identifier: Apache-2.0
"""What changes objects: it ends in the manifests' directory, as `kepctl apply` does, and is checked as files are.

A write is made from what was read, and carries the version of that. What came between is a conflict for a client that
names a version; for one that does not, the change is made again on top of it.
"""

from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from agent.api.errors import ApiError, FailureReason
from agent.config.strict_yaml import parse_documents, plain
from agent.kinds.kind import DEFAULT_NAMESPACE
from agent.model.pods.shown_spec import LEFT_OUT, without_annotation
from agent.objects.documents import dumped
from agent.objects.patches import applied, difference, merge_patched, patched, without_shown
from agent.wire.kepd.v1 import object_pb2
from kepd_door.run.bodies import in_thread
from kepd_door.run.calls import Caller, Calls
from kepd_door.run.going_back import with_values
from kepd_door.run.store import Entry, KindStore
from kepd_door.shape.allocating import check_fixed, with_node_ports
from kepd_door.shape.bounds import check_object
from kepd_door.shape.dressing import (
    LAST_APPLIED,
    dressed,
    last_applied,
    managed_fields,
    with_last_applied,
    written,
)
from kepd_door.shape.scale import scale_object
from kepd_door.shape.stamps import changed, has_stem, new
from kepd_door.shape.statuses import Failure, failure_of
from kepd_door.shape.targets import Target

Object = dict[str, Any]
Change = Callable[[Object, Entry | None], Awaitable[Object]]
JSON_PATCH, MERGE = "application/json-patch+json", "application/merge-patch+json"
STRATEGIC, APPLY = "application/strategic-merge-patch+json", "application/apply-patch+yaml"
MIGRATION = "kubectl-last-applied"
PATCHES = (JSON_PATCH, MERGE, STRATEGIC, APPLY)
KNOWN_BY_NODE = ("creationTimestamp", "generation")
# They are there though nobody wrote them, and a change of one writes it.
WRITTEN_AT_NEED = ("Namespace", "ServiceAccount")
HOW = {JSON_PATCH: "json", MERGE: "merge", STRATEGIC: "strategic"}
# Of a change that edits by hand come between; other callers of the door wait for their turn.
MOST_TRIES = 20


class Writer:
    """`store` is that of the target's kind."""

    def __init__(
        self, calls: Calls, caller: Caller, target: Target, store: KindStore, query: Mapping[str, str]
    ) -> None:
        self._calls, self._caller, self._target, self._store = calls, caller, target, store
        dry = query.get("dryRun", "")
        if dry not in ("", "All"):
            raise Failure(400, f"dryRun is {dry[:20]!r}; expected All")
        self.is_dry = bool(dry)
        self._manager = query.get("fieldManager", "")[:128]
        self._is_forced = query.get("force") == "true"

    @property
    def _api(self) -> str:
        return self._store.resource.object_kind

    @property
    def _key(self) -> tuple[str, str]:
        return self._target.namespace, self._target.name

    async def manifest(self, name: str = "") -> tuple[Object, str] | None:
        """As its file has it, and its version there; None where no file has it."""
        return await self._named_manifest(self._api, name or self._target.name)

    async def _named_manifest(self, kind: str, name: str) -> tuple[Object, str] | None:
        request = object_pb2.GetManifestRequest(kind=kind, namespace=self._target.namespace, name=name)
        try:
            found = await self._calls.ask(self._caller, request, object_pb2.GetManifestResponse)
        except ApiError as error:
            if error.reason in (FailureReason.NO_SUCH_POD, FailureReason.NO_SUCH_OBJECT, FailureReason.POD_NOT_FIT):
                return None
            raise
        trees, _ = await in_thread(parse_documents, found.content, found.source)
        made = plain(trees[0])
        return (with_data(made), found.version) if isinstance(made, dict) else None

    async def shown(self, made: Object, version: str, entry: Entry | None) -> Object:
        """A manifest, which was read after `entry` was found, with what the node knows beside it."""
        now = self._store.version_with(self._key, entry, version)
        return shown_with(self._store, made, entry, now, self._manager)

    async def create(self, made: Any) -> Object:  # noqa: ANN401  # JSON
        made = self._checked(made)
        check_object(made)
        for left in reversed(range(MOST_TRIES)):
            named = self._allocated(new(made), None)
            self._target = msgspec.structs.replace(self._target, name=named["metadata"]["name"])
            async with self._store.writing(self._key):
                try:
                    version = await self._put(named, create_only=True)
                except Failure as failure:
                    if failure.reason != "AlreadyExists" or made["metadata"].get("name") or not left:
                        raise
                    continue
                return await self._after(named, version)
        raise AssertionError

    async def marked(self, end: Object) -> Object:
        """With what says that it ends; its key is held by who asks."""
        before, version = await self._there()
        made = {**before, "metadata": {**before["metadata"], **end}}
        return await self._after(made, await self._put(made, version=version))

    async def update(self, made: Any) -> Object:  # noqa: ANN401  # JSON
        given, wanted = made, self._checked(made)

        async def change(before: Object, entry: Entry | None) -> Object:
            kept = self._without_shown(self._kept_secrets(wanted, before), before, entry)
            made: Object = merge_patched(before, difference(before, kept))
            return made

        return await self._changed(change, _version_of(given))

    async def patch(self, patch: Any, kind: str) -> Object:  # noqa: ANN401  # JSON
        if kind == APPLY:
            return await self._apply(patch)

        async def change(before: Object, _entry: Entry | None) -> Object:
            made = self._checked(await in_thread(patched, before, patch, HOW[kind]))
            if made.get("spec") != before.get("spec"):
                made = await with_values(self._calls, self._caller, made, self._remembered)
            return made

        return await self._changed(change, _version_of(patch) if kind != JSON_PATCH else "")

    async def _remembered(self, kind: str, name: str) -> Object | None:
        manifest = await self._named_manifest(kind, name)
        return manifest[0] if manifest is not None else None

    async def scale(self, body: Any, kind: str) -> None:  # noqa: ANN401  # JSON
        """`kind` is that of a patch, empty for a whole scale; one without a number means none."""

        async def change(before: Object, _entry: Entry | None) -> Object:
            made = patched(scale_object(before), body, HOW.get(kind, "merge")) if kind else body
            spec = made.get("spec") if isinstance(made, dict) else None
            replicas = spec.get("replicas", 0) if isinstance(spec, dict) else None
            if not isinstance(replicas, int) or replicas < 0:
                raise Failure(422, "spec.replicas is missing; expected a number that is not negative")
            return {**before, "spec": {**(before.get("spec") or {}), "replicas": replicas}}

        await self._changed(change, _version_of(body))

    async def _changed(self, change: Change, expected: str) -> Object:
        """`expected`: the version that a client names."""
        async with self._store.writing(self._key):
            if (lasting := self._lasting()) is not None:
                return lasting
            for left in reversed(range(MOST_TRIES)):
                before, version = await self._there()
                entry = await self.compared(version, expected)
                made = called(await change(called(before, self._target.name), entry), before["metadata"]["name"])
                made = self._allocated(changed(made, before), before)
                check_fixed(made, before)
                check_object(made)
                if made == before:
                    break
                if self._is_last_finalizer(made):
                    return await self._gone(made, version, entry)
                try:
                    version = await self._put(made, version=version)
                    break
                except Failure as failure:
                    # A file that cannot be written is a conflict too, but no try helps there.
                    if failure.text != self.conflict().text or not left:
                        raise
            return await self._after(made, version)

    async def compared(self, manifest: str, expected: str) -> Entry | None:
        """The object as the node shows it, looked at after its manifest was read; its version has to be `expected`."""
        await self._store.refresh()
        entry = self._store.find(*self._key)
        version = self._store.version_with(self._key, entry, manifest)
        if expected and expected != str(version):
            raise self.conflict()
        return entry

    def conflict(self) -> Failure:
        resource = self._store.resource
        what = f'{resource.full_name} "{self._target.name}"'
        text = f"Operation cannot be fulfilled on {what}: the object has been modified"
        return Failure(409, text, "Conflict", name=self._target.name, kind=resource.name)

    async def _apply(self, wanted: Any) -> Object:  # noqa: ANN401  # JSON
        if not self._manager:
            raise Failure(400, "fieldManager is missing; an applied object has an owner")
        expected, wanted = _version_of(wanted), self._checked(wanted)
        kept = written(wanted)

        async def change(before: Object, entry: Entry | None) -> Object:
            if self._manager == MIGRATION:
                # kubectl notes what it applied before, and that is noted here already.
                return before
            given = self._without_shown(kept, before, entry)
            made = await in_thread(applied, before, last_applied(before, self._manager), given)
            return with_last_applied(made, kept, self._manager)

        try:
            return await self._changed(change, expected)
        except Failure as failure:
            if failure.code != 404 or expected:
                raise
        try:
            return await self.create(with_last_applied(kept, kept, self._manager))
        except Failure as failure:
            if failure.reason != "AlreadyExists":
                raise
            return await self._changed(change, expected)

    def _is_last_finalizer(self, made: Object) -> bool:
        """It was deleted before, and nobody holds it any more."""
        metadata = made["metadata"]
        return "deletionTimestamp" in metadata and not metadata.get("finalizers") and self._api != "Namespace"

    async def _gone(self, made: Object, version: str, entry: Entry | None) -> Object:
        if not self.is_dry:
            namespace, name = self._key
            request = object_pb2.DeleteRequest(kind=self._api, namespace=namespace, name=name, version=version)
            try:
                await self._calls.ask(self._caller, request, object_pb2.DeleteResponse)
            except ApiError as error:
                raise failure_of(error, name, self._store.resource.full_name) from error
            self._store.note_deleted(self._key)
        return shown_with(self._store, made, entry, self._store.version, self._manager)

    def _allocated(self, made: Object, before: Object | None) -> Object:
        """With what is chosen for it."""
        if self._api != "Service":
            return made
        others = [entry.made for entry in self._store.known() if entry.key != self._key]
        return with_node_ports(made, before, others)

    def _lasting(self) -> Object | None:
        """What kepd itself puts back is as it was before and after each change."""
        entry = self._store.find(*self._key)
        if entry is None or self._api in WRITTEN_AT_NEED or not self._store.is_implied(entry):
            return None
        return entry.made

    async def _there(self) -> tuple[Object, str]:
        manifest = await self.manifest()
        if manifest is not None:
            return manifest
        await self._store.refresh()
        if (entry := self._store.find(*self._key)) is not None:
            if self._store.is_implied(entry) and self._api in WRITTEN_AT_NEED:
                return written(entry.made), ""
            text = f'{self._store.resource.singular} "{self._target.name}" is in no manifest; change what makes it'
            raise Failure(422, text, name=self._target.name, kind=self._store.resource.name)
        raise self.missing()

    def missing(self) -> Failure:
        resource = self._store.resource
        text = f'{resource.full_name} "{self._target.name}" not found'
        return Failure(404, text, name=self._target.name, group=resource.group, kind=resource.name)

    def _checked(self, made: Any) -> Object:  # noqa: ANN401  # JSON
        """Of the kind and with the name that the request says."""
        resource = self._store.resource
        if not isinstance(made, dict) or not isinstance(made.get("metadata", {}), dict):
            raise Failure(400, "the body is no object of Kubernetes")
        said = made.get("kind") or resource.object_kind, made.get("apiVersion") or resource.api_version
        if said != (resource.object_kind, resource.api_version):
            raise Failure(
                400,
                f"the body is a {said[0]} of {said[1]}; expected a {resource.object_kind} of {resource.api_version}",
            )
        metadata = made.get("metadata") or {}
        name = metadata.get("name") or self._target.name
        if not isinstance(name, str) or not (name or has_stem(metadata)):
            raise Failure(422, "metadata.name is missing; expected it, or metadata.generateName")
        namespace = metadata.get("namespace") or self._target.namespace or DEFAULT_NAMESPACE
        if self._target.name not in ("", name) or (self._target.namespace and namespace != self._target.namespace):
            raise Failure(
                400, f"the object is {namespace}/{name}; the request says {self._target.namespace}/{self._target.name}"
            )
        place = ({"name": name} if name else {}) | ({"namespace": namespace} if resource.has_namespace else {})
        kept = written({**made, "metadata": {**metadata, **place}})
        return {
            "apiVersion": resource.api_version,
            "kind": resource.object_kind,
            **{key: value for key, value in kept.items() if key not in ("apiVersion", "kind")},
        }

    def _without_shown(self, wanted: Object, before: Object, entry: Entry | None) -> Object:
        """What a server shows beside what is written would be written, if the whole of it were taken."""
        shown = self._checked(shown_with(self._store, before, entry, 0, self._manager))
        made: Object = without_shown(wanted, shown, before)
        return made

    def _kept_secrets(self, made: Object, before: Object) -> Object:
        """A client that got the object without the annotation that holds a copy does not mean to remove it."""
        text = ((before.get("metadata") or {}).get("annotations") or {}).get(LAST_APPLIED)
        annotations = made["metadata"].get("annotations") or {}
        if text is None or LAST_APPLIED in annotations:
            return made
        return {**made, "metadata": {**made["metadata"], "annotations": {**annotations, LAST_APPLIED: text}}}

    async def _put(self, made: Object, *, create_only: bool = False, version: str = "") -> str:
        """The version that its manifest has then."""
        texts = made.get("stringData")
        # An emptied value of data would be taken for one that was left out.
        emptied = {name: "" for name, text in texts.items() if text == ""} if isinstance(texts, dict) else {}
        folded = with_data(made)
        content = (await in_thread(dumped, {**folded, "stringData": emptied} if emptied else folded)).encode()
        parts = [
            object_pb2.ApplyRequest(content=content, dry_run=self.is_dry, create_only=create_only, version=version)
        ]
        name, kind = self._target.name, self._store.resource.full_name
        try:
            answer = await self._calls.in_parts(self._caller, parts, object_pb2.ApplyResponse)
        except ApiError as error:
            if error.reason is FailureReason.CHANGED_MEANWHILE:
                raise self.conflict() from error
            failure = failure_of(error, name, kind)
            if failure.reason == "AlreadyExists":
                failure.text = f'{kind} "{name}" already exists'
            raise failure from error
        return answer.objects[0].version

    async def _after(self, made: Object, version: str) -> Object:
        """As it is by now, with the uid that a pod was given; read after its version was looked at."""
        self._store.note_written(self._key)
        if not self.is_dry:
            metadata = made["metadata"]
            await self._store.until_seen(self._key, str(metadata.get("uid") or ""), metadata.get("generation") or 1)
        await self._store.refresh()
        entry = self._store.find(*self._key)
        manifest = None if self.is_dry else await self.manifest()
        return await self.shown(*(manifest or (with_data(made), version)), entry)


def shown_with(store: KindStore, made: Object, entry: Entry | None, version: int, manager: str = "") -> Object:
    """A manifest with what the node knows beside it, as that version."""
    if entry is not None and not is_of(made, entry):
        made, entry = called(made, entry.made["metadata"]["name"]), None
    if entry is None:
        metadata = {"namespace": DEFAULT_NAMESPACE, **(made.get("metadata") or {})}
        # It was written a moment ago; its plane has yet to see it.
        begun = {"status": {"phase": "Pending", "conditions": []}} if store.resource.object_kind == "Pod" else {}
        return dressed(store.resource, {**made, **begun, "metadata": metadata}, version)
    live = without_annotation(entry.made, LEFT_OUT)
    known = {key: value for key, value in (made.get("metadata") or {}).items() if value}
    # The node knows since when, and what its end makes of the others.
    own = {key: live["metadata"][key] for key in KNOWN_BY_NODE if live["metadata"].get(key)}
    metadata = {**live["metadata"], **known, **own, "name": live["metadata"]["name"]}
    for word in ("labels", "annotations"):
        if word in live["metadata"]:
            metadata[word] = {**live["metadata"][word], **(metadata.get(word) or {})}
    body: Object = {**live, **written(made), "metadata": metadata}
    if isinstance(live.get("spec"), dict) and isinstance(made.get("spec"), dict):
        body["spec"] = {**live["spec"], **made["spec"]}
    if owned := managed_fields(made, manager or "kubectl"):
        body["metadata"]["managedFields"] = owned
    return dressed(store.resource, body, version)


def _version_of(given: Any) -> str:  # noqa: ANN401  # JSON
    metadata = given.get("metadata") if isinstance(given, dict) else None
    return str(metadata.get("resourceVersion") or "") if isinstance(metadata, dict) else ""


def is_of(made: Object, entry: Entry) -> bool:
    """Not while the pod that had the name before still ends."""
    uid = (made.get("metadata") or {}).get("uid")
    return made.get("kind") != "Pod" or not uid or uid == entry.made["metadata"]["uid"]


def called(made: Object, name: str) -> Object:
    """A pod has two names, and its manifest the shorter one."""
    return {**made, "metadata": {**made["metadata"], "name": name}}


def with_data(made: Object) -> Object:
    """What a Secret has as text becomes data, as an API server keeps it."""
    given = made.get("stringData")
    if made.get("kind") != "Secret" or not isinstance(given, dict):
        return made
    if not all(isinstance(text, str) for text in given.values()):
        return made
    texts = {name: b64encode(text.encode()).decode() for name, text in given.items()}
    rest = {name: value for name, value in made.items() if name != "stringData"}
    return {**rest, "data": {**(made.get("data") or {}), **texts}}
