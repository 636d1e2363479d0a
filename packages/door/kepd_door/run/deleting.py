# SPDX-License-Identifier: Apache-2.0
"""What takes objects away: deletions by name and of collections, and evictions, differ in their answers alone."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from agent.api.errors import ApiError, FailureReason
from agent.wire.kepd.v1 import object_pb2, pod_pb2
from kepd_door.run.calls import Caller, Calls
from kepd_door.run.store import Entry, KindStore
from kepd_door.run.writing import Writer
from kepd_door.shape.statuses import Failure, failure_of
from kepd_door.shape.targets import Target

Object = dict[str, Any]
# Their ends are more than a mark.
ENDS_BY_ITSELF = ("namespaces", "pods")


class Options(msgspec.Struct, frozen=True):
    """`uid` and `version` are what the object has to have; empty: whatever it has."""

    grace_s: int | None = None
    is_dry: bool = False
    uid: str = ""
    version: str = ""


def options_of(given: Any, query: Mapping[str, str]) -> Options:  # noqa: ANN401  # JSON
    """Of a deletion, from the body and the query. Raises Failure."""
    given = {} if given is None else given
    if not isinstance(given, dict):
        raise Failure(400, "the body is no DeleteOptions")
    grace = query.get("gracePeriodSeconds", given.get("gracePeriodSeconds"))
    try:
        grace_s = max(int(grace), 0) if grace is not None else None
    except (TypeError, ValueError) as error:
        raise Failure(400, f"gracePeriodSeconds is {str(grace)[:20]!r}; expected a number") from error
    if query.get("propagationPolicy", given.get("propagationPolicy")) == "Orphan":
        text = "propagationPolicy Orphan is not carried out: pods end with their workload; expected Background"
        raise Failure(422, text)
    dry = [*filter(None, [query.get("dryRun")]), *(given.get("dryRun") or ())]
    if any(each != "All" for each in dry):
        raise Failure(400, f"dryRun is {str(dry)[:40]}; expected All")
    preconditions = given.get("preconditions") or {}
    if not isinstance(preconditions, dict):
        raise Failure(400, "preconditions is no map; expected uid or resourceVersion")
    return Options(
        grace_s, bool(dry), str(preconditions.get("uid") or ""), str(preconditions.get("resourceVersion") or "")
    )


class Deleter:
    def __init__(self, calls: Calls, caller: Caller, store: KindStore, options: Options) -> None:
        self._calls, self._caller, self._store, self._options = calls, caller, store, options

    @property
    def is_dry(self) -> bool:
        return self._options.is_dry

    async def checked(self, target: Target) -> Object:
        """The object as it is, if it is the one that is meant. Raises Failure."""
        return (await self._found(target))[0]

    async def delete(self, target: Target, *, evicts: bool = False) -> Object:
        """The object as it was; of a pod as it ends. Raises Failure."""
        options, store = self._options, self._store
        async with store.writing((target.namespace, target.name)):
            made, entry, version = await self._found(target)
            if made["metadata"].get("finalizers") and target.resource.name not in ENDS_BY_ITSELF:
                return made if options.is_dry else await self._marked(target, made)
            if entry is not None and not version and store.is_made_again(entry):
                return made
            try:
                await self._carry_out(target, entry, version if options.version else "", evicts=evicts)
            except ApiError as error:
                raise failure_of(error, target.name, store.resource.full_name) from error
            if options.is_dry:
                return made
            if store.resource.name == "pods":
                made = self._ending(made)
                seen = store.find(*entry.key) if entry is not None else None
                if seen is not None:
                    store.note_ending(seen, self._ending(seen.made))
            elif entry is not None:
                store.note_deleted(entry.key)
            return made

    async def _marked(self, target: Target, made: Object) -> Object:
        """It goes with the last of its finalizers, which others take away."""
        if "deletionTimestamp" in made["metadata"]:
            return made
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        end = {"deletionTimestamp": now, "deletionGracePeriodSeconds": 0}
        writer = Writer(self._calls, self._caller, target, self._store, {})
        return await writer.marked(end)

    async def _found(self, target: Target) -> tuple[Object, Entry | None, str]:
        """With its version in its manifest, empty where it is in none."""
        options, store = self._options, self._store
        writer = Writer(self._calls, self._caller, target, store, {})
        manifest = await writer.manifest()
        version = manifest[1] if manifest is not None else ""
        key = target.namespace, target.name
        entry = await writer.compared(version, options.version) if manifest is not None else await self._seen(key)
        if manifest is not None:
            made = await writer.shown(*manifest, entry)
        elif entry is not None:
            made = entry.made
        else:
            raise writer.missing()
        if options.uid and options.uid != made["metadata"]["uid"]:
            text = f"the UID in the precondition ({options.uid[:100]}) is not that of the object"
            raise Failure(409, text, "Conflict")
        if manifest is None and options.version not in ("", made["metadata"]["resourceVersion"]):
            raise writer.conflict()
        return made, entry, version

    def _ending(self, pod: Object) -> Object:
        """As it is from now on, until it is gone."""
        if "deletionTimestamp" in pod["metadata"]:
            return pod
        own_s = (pod.get("spec") or {}).get("terminationGracePeriodSeconds", 30)
        grace_s = self._options.grace_s if self._options.grace_s is not None else own_s
        until = (datetime.now(UTC) + timedelta(seconds=grace_s)).strftime("%Y-%m-%dT%H:%M:%SZ")
        metadata = {**pod["metadata"], "deletionTimestamp": until, "deletionGracePeriodSeconds": grace_s}
        metadata["generation"] = metadata.get("generation", 1) + 1
        return {**pod, "metadata": metadata}

    async def _seen(self, key: tuple[str, str]) -> Entry | None:
        await self._store.refresh()
        return self._store.find(*key)

    async def _carry_out(self, target: Target, entry: Entry | None, version: str, *, evicts: bool) -> None:
        options, kind = self._options, self._store.resource.object_kind
        request = object_pb2.DeleteRequest(
            kind=kind, namespace=target.namespace, name=target.name, dry_run=options.is_dry, evicts=evicts,
            version=version,
        )  # fmt: skip
        if options.grace_s is not None:
            request.grace_seconds = options.grace_s
        try:
            await self._calls.ask(self._caller, request, object_pb2.DeleteResponse)
        except ApiError as error:
            if kind != "Pod" or entry is None or error.reason is not FailureReason.NO_SUCH_POD:
                raise
            if not options.is_dry:
                # Of a workload: no file has it.
                of = pod_pb2.DeletePodRequest(namespace=entry.key[0], name=entry.key[1], evicts=evicts)
                if options.grace_s is not None:
                    of.grace_seconds = options.grace_s
                await self._calls.ask(self._caller, of, pod_pb2.DeletePodResponse)
