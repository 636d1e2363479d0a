# SPDX-License-Identifier: Apache-2.0
"""What changes objects: it ends in the manifests' directory, as `kepctl apply` does, and is checked as files are."""

from base64 import b64encode
from collections.abc import Mapping
from typing import Any

import msgspec

from agent.api.errors import ApiError, FailureReason
from agent.config.manifest_documents import dumped
from agent.config.strict_yaml import UnreadableYaml, parse_documents, plain
from agent.kinds.registry import DEFAULT_NAMESPACE
from agent.wire.kepd.v1 import object_pb2, pod_pb2
from kepd_door.run.calls import Caller, Calls
from kepd_door.run.going_back import with_values
from kepd_door.run.store import Entry, KindStore
from kepd_door.shape.dressing import (
    LAST_APPLIED,
    dressed,
    last_applied,
    managed_fields,
    with_last_applied,
    written,
)
from kepd_door.shape.patches import applied, difference, json_patched, merge_patched, strategic_patched
from kepd_door.shape.protobuf import decoded_protobuf
from kepd_door.shape.statuses import Failure, failure_of
from kepd_door.shape.targets import Target

Object = dict[str, Any]
JSON_PATCH, MERGE = "application/json-patch+json", "application/merge-patch+json"
STRATEGIC, APPLY = "application/strategic-merge-patch+json", "application/apply-patch+yaml"
MIGRATION = "kubectl-last-applied"
PATCHES = (JSON_PATCH, MERGE, STRATEGIC, APPLY)


def decoded(body: bytes, content_type: str) -> Any:  # noqa: ANN401  # JSON
    """JSON, or YAML where it is said to be."""
    if "protobuf" in content_type:
        return decoded_protobuf(body)
    if "yaml" in content_type:
        try:
            trees, repeated = parse_documents(body, "body")
        except UnreadableYaml as error:
            raise Failure(400, str(error.finding)) from error
        if repeated or len(trees) != 1:
            raise Failure(400, str(repeated[0]) if repeated else "expected one document")
        return plain(trees[0])
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise Failure(400, f"the body is no JSON: {str(error)[:200]}") from error


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

    async def manifest(self, name: str = "") -> Object | None:
        """As its file has it; None where no file has it."""
        return await self._named_manifest(self._api, name or self._target.name)

    async def _named_manifest(self, kind: str, name: str) -> Object | None:
        request = object_pb2.GetManifestRequest(kind=kind, namespace=self._target.namespace, name=name)
        try:
            found = await self._calls.ask(self._caller, request, object_pb2.GetManifestResponse)
        except ApiError as error:
            if error.reason in (FailureReason.NO_SUCH_POD, FailureReason.NO_SUCH_OBJECT, FailureReason.POD_NOT_FIT):
                return None
            raise
        trees, _ = parse_documents(found.content, found.source)
        made = plain(trees[0])
        return made if isinstance(made, dict) else None

    async def shown(self, made: Object, entry: Entry | None) -> Object:
        """A manifest with what the node knows beside it."""
        if entry is None:
            return dressed(self._store.resource, _with_data(self._named(made)), self._store.version)
        live = entry.made
        metadata = {**live["metadata"], **{key: value for key, value in (made.get("metadata") or {}).items() if value}}
        metadata |= {"name": self._target.name or live["metadata"]["name"]}
        if "labels" in live["metadata"]:
            metadata["labels"] = {**live["metadata"]["labels"], **(metadata.get("labels") or {})}
        body: Object = {**live, **_with_data(written(made)), "metadata": metadata}
        if isinstance(live.get("spec"), dict) and isinstance(made.get("spec"), dict):
            body["spec"] = {**live["spec"], **made["spec"]}
        if owned := managed_fields(made, self._manager or "kubectl"):
            body["metadata"]["managedFields"] = owned
        return dressed(self._store.resource, body, entry.version)

    def _named(self, made: Object) -> Object:
        """Of what was written a moment ago; its plane has yet to see it."""
        metadata = {"namespace": self._target.namespace or DEFAULT_NAMESPACE, **(made.get("metadata") or {})}
        begun = {"status": {"phase": "Pending", "conditions": []}} if self._api == "Pod" else {}
        return {**made, **begun, "metadata": metadata}

    async def create(self, made: Any) -> Object:  # noqa: ANN401  # JSON
        made = self._checked(made)
        self._target = msgspec.structs.replace(self._target, name=made["metadata"]["name"])
        await self._put(made, create_only=True)
        return await self._after(made)

    async def update(self, made: Any) -> Object:  # noqa: ANN401  # JSON
        given, made = made, self._checked(made)
        before = await self._there()
        self._compare_version(given)
        # What a server shows beside what is written would be written, if the whole of it were taken.
        entry = self._store.find(self._target.namespace, self._target.name)
        shown = self._checked(await self.shown(before, entry))
        made = merge_patched(before, difference(shown, self._kept_secrets(made, before)))
        if made != before:
            await self._put(made)
        return await self._after(made)

    async def patch(self, patch: Any, kind: str) -> Object:  # noqa: ANN401  # JSON
        if kind == APPLY:
            return await self._apply(patch)
        before = await self._there()
        if kind == JSON_PATCH:
            made = json_patched(before, patch)
        elif not isinstance(patch, dict):
            raise Failure(400, "a merge patch is an object")
        else:
            self._compare_version(patch)
            made = merge_patched(before, patch) if kind == MERGE else strategic_patched(before, patch)
        made = self._checked(made)
        if made.get("spec") != before.get("spec"):
            made = await with_values(self._calls, self._caller, made, self._named_manifest)
        if made != before:
            await self._put(made)
        return await self._after(made)

    async def _apply(self, wanted: Any) -> Object:  # noqa: ANN401  # JSON
        if not self._manager:
            raise Failure(400, "fieldManager is missing; an applied object has an owner")
        wanted = self._checked(wanted)
        before = await self.manifest()
        if self._manager == MIGRATION and before is not None:
            # kubectl notes what it applied before, and that is noted here already.
            return await self._after(before)
        kept = written(wanted)
        made = with_last_applied(applied(before or {}, last_applied(before or {}), kept), kept)
        if before is None:
            return await self.create(made)
        if made != before:
            await self._put(made)
        return await self._after(made)

    async def scale(self, replicas: int) -> None:
        before = await self._there()
        await self._put({**before, "spec": {**(before.get("spec") or {}), "replicas": replicas}})

    async def delete(self, grace_s: int | None, *, evicts: bool = False) -> None:
        request = object_pb2.DeleteObjectRequest(
            kind=self._api, namespace=self._target.namespace, name=self._target.name, dry_run=self.is_dry, evicts=evicts
        )
        if grace_s is not None:
            request.grace_seconds = grace_s
        try:
            await self._calls.ask(self._caller, request, object_pb2.DeleteObjectResponse)
        except ApiError as error:
            entry = self._store.find(self._target.namespace, self._target.name)
            if self._api != "Pod" or entry is None or error.reason is not FailureReason.NO_SUCH_POD:
                raise
            if not self.is_dry:
                # Of a workload: no file has it.
                of = pod_pb2.DeletePodRequest(namespace=entry.key[0], name=entry.key[1], evicts=evicts)
                if grace_s is not None:
                    of.grace_seconds = grace_s
                await self._calls.ask(self._caller, of, pod_pb2.DeletePodResponse)

    async def _there(self) -> Object:
        found = await self.manifest()
        if found is not None:
            return found
        if self._store.find(self._target.namespace, self._target.name) is not None:
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
        if not name and metadata.get("generateName"):
            raise Failure(
                422, "metadata.generateName is not carried out: a manifest has a name; expected metadata.name"
            )
        if not isinstance(name, str) or not name:
            raise Failure(422, "metadata.name is missing")
        namespace = metadata.get("namespace") or self._target.namespace or DEFAULT_NAMESPACE
        if self._target.name not in ("", name) or (self._target.namespace and namespace != self._target.namespace):
            raise Failure(
                400, f"the object is {namespace}/{name}; the request says {self._target.namespace}/{self._target.name}"
            )
        place = {"name": name} | ({"namespace": namespace} if resource.has_namespace else {})
        kept = written({**made, "metadata": {**metadata, **place}})
        return {
            "apiVersion": resource.api_version,
            "kind": resource.object_kind,
            **{key: value for key, value in kept.items() if key not in ("apiVersion", "kind")},
        }

    def _compare_version(self, made: Object) -> None:
        said = str((made.get("metadata") or {}).get("resourceVersion") or "")
        entry = self._store.find(self._target.namespace, self._target.name)
        if said and entry is not None and said != str(entry.version):
            resource = self._store.resource
            what = f'{resource.full_name} "{self._target.name}"'
            text = f"Operation cannot be fulfilled on {what}: the object has been modified"
            raise Failure(409, text, "Conflict", name=self._target.name, kind=resource.name)

    def _kept_secrets(self, made: Object, before: Object) -> Object:
        """A client that got the object without the annotation that holds a copy does not mean to remove it."""
        text = ((before.get("metadata") or {}).get("annotations") or {}).get(LAST_APPLIED)
        annotations = made["metadata"].get("annotations") or {}
        if text is None or LAST_APPLIED in annotations:
            return made
        return {**made, "metadata": {**made["metadata"], "annotations": {**annotations, LAST_APPLIED: text}}}

    async def _put(self, made: Object, *, create_only: bool = False) -> None:
        content = dumped(made).encode()
        parts = [object_pb2.ApplyObjectsRequest(content=content, dry_run=self.is_dry, create_only=create_only)]
        name, kind = self._target.name, self._store.resource.full_name
        try:
            await self._calls.in_parts(self._caller, parts, object_pb2.ApplyObjectsResponse)
        except ApiError as error:
            if create_only and error.reason is FailureReason.POD_NOT_FIT and " is already in " in error.text:
                text = f'{kind} "{name}" already exists'
                raise Failure(409, text, "AlreadyExists", name=name, kind=kind) from error
            raise failure_of(error, name, kind) from error

    async def _after(self, made: Object) -> Object:
        self._store.note_written((self._target.namespace, self._target.name))
        await self._store.refresh()
        return await self.shown(made, self._store.find(self._target.namespace, self._target.name))


def _with_data(made: Object) -> Object:
    """What a Secret has as text is read as data, as an API server shows it."""
    given = made.get("stringData")
    if made.get("kind") != "Secret" or not isinstance(given, dict):
        return made
    texts = {name: b64encode(str(text).encode()).decode() for name, text in given.items()}
    return {**made, "data": {**(made.get("data") or {}), **texts}}


def options_of(body: bytes, content_type: str, query: Mapping[str, str]) -> Object:
    """Of a deletion, from the body or the query."""
    given = decoded(body, content_type) if body.strip() else {}
    if not isinstance(given, dict):
        raise Failure(400, "the body is no DeleteOptions")
    found: Object = {
        **given,
        **{name: query[name] for name in ("gracePeriodSeconds", "propagationPolicy") if name in query},
    }
    grace = found.get("gracePeriodSeconds")
    if grace is not None:
        try:
            found["gracePeriodSeconds"] = max(int(grace), 0)
        except (TypeError, ValueError) as error:
            raise Failure(400, f"gracePeriodSeconds is {str(grace)[:20]!r}; expected a number") from error
    policy = found.get("propagationPolicy")
    if policy == "Orphan":
        text = "propagationPolicy Orphan is not carried out: pods end with their workload; expected Background"
        raise Failure(422, text)
    return found


def scale_object(made: Object) -> Object:
    metadata = {
        key: made["metadata"].get(key) for key in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    }
    labels = ((made.get("spec") or {}).get("selector") or {}).get("matchLabels") or {}
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": metadata,
        "spec": {"replicas": (made.get("spec") or {}).get("replicas", 1)},
        "status": {
            "replicas": (made.get("status") or {}).get("replicas", 0),
            "selector": ",".join(f"{name}={value}" for name, value in labels.items()),
        },
    }
