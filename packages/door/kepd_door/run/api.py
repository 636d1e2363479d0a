# SPDX-License-Identifier: Apache-2.0
"""Kubernetes' API: each request to what answers it. What an object is, and who may what, the services of kepd say."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from aiohttp import web

from agent.kinds.shown import shown_of
from agent.kinds.table import Column
from agent.objects.feed import Versions
from agent.wire.kepd.v1 import access_pb2, pod_pb2
from kepd_door.run import debugging, extras
from kepd_door.run.bodies import OBJECTS, body_of
from kepd_door.run.calls import Caller, Calls
from kepd_door.run.changes_file import NOTHING, Told
from kepd_door.run.deleting import Deleter, options_of
from kepd_door.run.kinds.admitting import admitted
from kepd_door.run.kinds.always import Always
from kepd_door.run.kinds.namespaces import Namespaces
from kepd_door.run.kinds.proxy import pass_on
from kepd_door.run.kinds.written_status import write_status
from kepd_door.run.kubelet_pages import kubelet_page
from kepd_door.run.pages import json_answer, page
from kepd_door.run.pods import log_of, stream_of
from kepd_door.run.store import Entry, KindStore, encoded
from kepd_door.run.watching import MOST_WATCHES, Form, Watcher, number_of, wanted
from kepd_door.run.whole import Whole
from kepd_door.run.writing import PATCHES, Writer
from kepd_door.shape.resources import NAMESPACES, RESOURCES, Resource
from kepd_door.shape.scale import scale_object
from kepd_door.shape.selecting import Selection, part_of
from kepd_door.shape.statuses import Failure, success
from kepd_door.shape.tables import row, table
from kepd_door.shape.targets import Target, target_of, verb_of

Object = dict[str, Any]
EDITED = ("resize", "ephemeralcontainers")
STREAMS = ("exec", "attach", "portforward")
READS = ("GET", "HEAD")
MOST_VALUES_OF_REVIEW = 200


class Door:
    def __init__(
        self,
        calls: Calls,
        spawn: Callable[[Any], object],
        address: str,
        node: str,
        told: Told = NOTHING,
        authority: Callable[[], str] = str,
    ) -> None:
        """`told` is what the last process told watchers; `authority` is that of the door's certificate."""
        self._calls, self._address = calls, address
        self._resources = [one for one in RESOURCES if _is_there(one, calls)]
        versions = self._versions = Versions(max(time.time_ns() // 1_000_000, told.last))
        shown = [one for one in self._resources if one.kind is not None]
        always = Always(calls, self.store_of, address, authority)
        self._stores = {
            one: KindStore(one, calls, always.offer_of(one.kind), versions, spawn, node)
            for one in shown if one.kind is not None
        }  # fmt: skip
        for resource, store in self._stores.items():
            if (remembered := told.kinds.get(resource.full_name)) is not None:
                store.resume(remembered)
        self._namespaces = Namespaces(calls, self._stores, spawn)
        self._node = node
        self._watches: dict[str, int] = {}
        self.ending = asyncio.Event()

    def told(self) -> Told:
        """What the next process has to know."""
        kept = {resource.full_name: store.to_remember() for resource, store in self._stores.items()}
        return Told(self._versions.last, {name: remembered for name, remembered in kept.items() if remembered})

    async def resume(self) -> None:
        await self._namespaces.resume()

    def store_of(self, name: str) -> KindStore | None:
        """Of a kind that is there, by its plural."""
        return next((store for one, store in self._stores.items() if one.name == name), None)

    async def handle(self, request: web.BaseRequest, caller: Caller) -> web.StreamResponse:
        target = target_of(request.path)
        if target is None or target.resource not in self._resources:
            return await self._kubelet_page(request, caller) or page(request, self._resources, self._address)
        verb = verb_of(request.method, target, request.query)
        if target.resource.kind is None:
            return await self._without_objects(request, caller, target, verb)
        if request.method not in READS:
            # Before anything of the body is read: who may not write costs no more than a line.
            self._calls.require(caller, access_pb2.LEVEL_OPERATE, f"{verb} of {target.resource.full_name}")
        if target.part:
            return await self._part(request, caller, target)
        if verb == "watch" and not target.name:
            return await self._watch(request, caller, target)
        answer = {
            "get": self._get, "watch": self._watch, "list": self._list, "create": self._create, "update": self._update,
            "patch": self._patch, "delete": self._delete, "deletecollection": self._delete_all,
        }.get(verb)  # fmt: skip
        if answer is None or verb not in target.resource.verbs:
            raise Failure(405, f"{verb or request.method} is not carried out on {target.resource.name}")
        if verb in ("update", "patch", "delete", "get") and not target.name:
            raise Failure(405, "the path names no object")
        return await answer(request, caller, target)

    async def _kubelet_page(self, request: web.BaseRequest, caller: Caller) -> web.StreamResponse | None:
        if request.method != "GET":
            return None
        found = await kubelet_page(request, self._calls, caller, self.store_of("pods"))
        return found if found is None or isinstance(found, web.StreamResponse) else json_answer(found)

    def _form(self, request: web.BaseRequest) -> Form:
        accept = request.headers.get("Accept", "").replace(" ", "")
        is_table = "as=Table" in accept and "g=meta.k8s.io" in accept
        include = request.query.get("includeObject", "Metadata") if is_table else ""
        if is_table and include not in ("None", "Metadata", "Object"):
            raise Failure(400, f"includeObject is {include[:20]!r}; expected None, Metadata or Object")
        return Form(is_table, include)

    async def _get(self, request: web.BaseRequest, caller: Caller, target: Target) -> web.Response:
        store = self._stores[target.resource]
        await store.refresh()
        entry = store.find(target.namespace, target.name)
        form = self._form(request)
        if form.is_table and entry is not None:
            return json_answer(self._table(store, [entry], form))
        made = await self._full(store, caller, target, entry)
        if made is None:
            raise Writer(self._calls, caller, target, store, {}).missing()
        if form.is_table:
            # Written a moment ago, and its plane has not seen it yet.
            columns = [Column[Object]("NAME", lambda _: target.name)]
            return json_answer(table(columns, [row(columns, made, made, form.include, {})], {}))
        return json_answer(made)

    async def _full(self, store: KindStore, caller: Caller, target: Target, entry: Entry | None) -> Object | None:
        """With what its manifest says, for callers who may read that: values of Secrets and variables."""
        if store.resource.is_written and caller.level >= access_pb2.LEVEL_OPERATE:
            writer = Writer(self._calls, caller, target, store, {})
            name = entry.short.split()[0] if entry is not None and entry.short else target.name
            manifest = await writer.manifest(name)
            if manifest is not None:
                return await writer.shown(*manifest, entry)
        if entry is None:
            return None
        return (await Whole(self._calls, caller, store).one(entry)).made

    def _table(self, store: KindStore, entries: Sequence[Entry], form: Form, metadata: Object | None = None) -> Object:
        rows = [row(store.columns, one.told, one.made, form.include, one.cache) for one in entries]
        return table(store.columns, rows, metadata or {"resourceVersion": str(store.version)})

    async def _list(self, request: web.BaseRequest, caller: Caller, target: Target) -> web.Response:
        store = self._stores[target.resource]
        selection = Selection(request.query, self._node)
        if request.query.get("resourceVersionMatch") == "Exact":
            raise Failure(410, "The resourceVersion for the provided list is too old.", "Expired")
        entries = await store.entries()
        if (version := number_of(request.query, "resourceVersion")) > store.version:
            store.check_version(version)
        entries = [found for one in entries if (found := wanted(selection, target, one)) is not None]
        shown, after, left = part_of(entries, request.query, lambda one: one.key)
        metadata: Object = {"resourceVersion": str(store.version)}
        if after:
            metadata |= {"continue": after, "remainingItemCount": left}
        form = self._form(request)
        if form.is_table:
            return json_answer(self._table(store, shown, form, metadata))
        items = [encoded(one) for one in await Whole(self._calls, caller, store).all(shown)]
        kind = f"{target.resource.object_kind}List"
        return json_answer(
            {"kind": kind, "apiVersion": target.resource.api_version, "metadata": metadata, "items": items}
        )

    async def _watch(self, request: web.BaseRequest, caller: Caller, target: Target) -> web.StreamResponse:
        held = self._watches.get(caller.name, 0)
        if held >= MOST_WATCHES:
            raise Failure(429, f"{caller.name} has {held} watches open already", retryAfterSeconds=5)
        self._watches[caller.name] = held + 1
        try:
            whole = Whole(self._calls, caller, self._stores[target.resource])
            watcher = Watcher(whole, target, request.query, self._form(request), self.ending, self._node)
            return await watcher.run(request)
        finally:
            self._watches[caller.name] -= 1

    def _writer(self, request: web.BaseRequest, caller: Caller, target: Target) -> Writer:
        if target.resource.has_namespace and not target.namespace:
            raise Failure(405, f"{target.resource.name} are written in a namespace; the path has none")
        return Writer(self._calls, caller, target, self._stores[target.resource], request.query)

    async def _create(self, request: web.BaseRequest, caller: Caller, target: Target) -> web.Response:
        made = await body_of(request)
        self._namespaces.check(target)
        if target.resource.name == "pods":
            made = await admitted(made, self.store_of)
        return json_answer(await self._writer(request, caller, target).create(made), status=201)

    async def _update(self, request: web.BaseRequest, caller: Caller, target: Target) -> web.Response:
        made = await body_of(request)
        return json_answer(await self._writer(request, caller, target).update(made))

    async def _patch(self, request: web.BaseRequest, caller: Caller, target: Target) -> web.Response:
        if request.content_type not in PATCHES:
            raise Failure(415, f"{request.content_type[:100]} is no patch; expected one of {', '.join(PATCHES)}")
        patch = await body_of(request, PATCHES)
        writer = self._writer(request, caller, target)
        if target.resource.name == "nodes" and target.name == self._node:
            return await self._node_patched(caller, target, patch, is_dry=writer.is_dry)
        return json_answer(await writer.patch(patch, request.content_type))

    async def _node_patched(
        self,
        caller: Caller,
        target: Target,
        patch: Any,  # noqa: ANN401  # JSON
        *,
        is_dry: bool,
    ) -> web.Response:
        """A node is made by itself; that it takes no pods is all that can be written."""
        spec = patch.get("spec") if isinstance(patch, dict) else None
        if not isinstance(spec, dict) or set(spec) != {"unschedulable"} or set(patch) - {"spec", "metadata"}:
            raise Failure(
                422,
                "of a node only spec.unschedulable can be changed; node.labels of kepd's configuration has its labels",
            )
        if is_dry:
            pass
        elif spec.get("unschedulable"):
            await self._calls.ask(caller, pod_pb2.DrainNodeRequest(keeps_pods=True), pod_pb2.DrainNodeResponse)
        else:
            await self._calls.ask(caller, pod_pb2.UncordonNodeRequest(), pod_pb2.UncordonNodeResponse)
        store = self._stores[target.resource]
        await store.refresh()
        entry = store.find("", target.name)
        if entry is None:
            raise Writer(self._calls, caller, target, store, {}).missing()
        made = {**entry.made, "spec": {**entry.made.get("spec", {}), **spec}} if is_dry else entry.made
        return json_answer(made)

    async def _deleter(self, request: web.BaseRequest, caller: Caller, target: Target) -> Deleter:
        given = options_of(await body_of(request), request.query)
        return Deleter(self._calls, caller, self._stores[target.resource], given)

    async def _delete(self, request: web.BaseRequest, caller: Caller, target: Target) -> web.Response:
        deleter = await self._deleter(request, caller, target)
        if target.resource is NAMESPACES and not deleter.is_dry:
            return json_answer(await self._namespaces.end(deleter, target))
        made = await deleter.delete(target)
        if target.resource.name == "pods" or "deletionTimestamp" in made["metadata"]:
            # It ends in its own time; who asked is answered now, and sees it go.
            return json_answer(made)
        return json_answer(success(target.name, target.resource.group, target.resource.name, made["metadata"]["uid"]))

    async def _delete_all(self, request: web.BaseRequest, caller: Caller, target: Target) -> web.Response:
        deleter = await self._deleter(request, caller, target)
        store, selection = self._stores[target.resource], Selection(request.query, self._node)
        gone = []
        for one in await store.entries():
            if (found := wanted(selection, target, one)) is not None:
                namespace, name = found.key
                try:
                    gone.append(await deleter.delete(Target(target.resource, namespace, name)))
                except Failure as failure:
                    # Another caller was faster.
                    if failure.code != 404:
                        raise
        kind = f"{target.resource.object_kind}List"
        return json_answer({"kind": kind, "apiVersion": target.resource.api_version, "metadata": {}, "items": gone})

    async def _part(self, request: web.BaseRequest, caller: Caller, target: Target) -> web.StreamResponse:
        store = self._stores[target.resource]
        known = {name for name, _, _ in (target.resource.kind.subresources if target.resource.kind is not None else ())}
        if target.part not in known:
            raise Failure(
                404, f"{target.resource.name} have no {target.part} here; there is {', '.join(sorted(known)) or 'none'}"
            )
        if target.part == "proxy":
            self._calls.require(caller, access_pb2.LEVEL_OPERATE, f"proxy of {target.resource.full_name}")
            return await pass_on(request, target, self.store_of)
        await store.refresh()
        entry = store.find(target.namespace, target.name)
        if target.part == "scale":
            return await self._scale(request, caller, target)
        if entry is None:
            raise Writer(self._calls, caller, target, store, {}).missing()
        # A pod is known to the runtime by its whole name.
        name = entry.key[1]
        if target.part == "binding":
            raise Failure(422, "a pod is not bound here: it runs on the node that has its manifest")
        if target.part in EDITED and request.method in ("PUT", "PATCH"):
            return await self._part_changed(request, caller, target, entry)
        if target.part == "status" and request.method in ("PUT", "PATCH"):
            return await self._status_written(request, caller, target, entry)
        if target.part in ("status", *EDITED):
            if request.method != "GET":
                raise Failure(405, f"a {target.part} is got, updated or patched")
            return json_answer(entry.made)
        if target.part == "log":
            return await log_of(request, self._calls, caller, target.namespace, name)
        if target.part in STREAMS:
            return await stream_of(request, self._calls, caller, target.part, target.namespace, name)
        return await self._evict(request, caller, target)

    async def _status_written(
        self, request: web.BaseRequest, caller: Caller, target: Target, entry: Entry
    ) -> web.Response:
        body = await body_of(request, PATCHES if request.method == "PATCH" else OBJECTS)
        writer = self._writer(request, caller, target)
        kind = request.content_type if request.method == "PATCH" else ""
        return json_answer(await write_status(writer, self._stores[target.resource], entry, body, kind))

    async def _part_changed(
        self, request: web.BaseRequest, caller: Caller, target: Target, entry: Entry
    ) -> web.Response:
        """Containers for debugging begin in the pod that runs; other resources are those of its manifest."""
        body = await body_of(request, PATCHES if request.method == "PATCH" else OBJECTS)
        if target.part == "resize":
            writer = self._writer(request, caller, target)
            is_patch = request.method == "PATCH"
            return json_answer(await (writer.patch(body, request.content_type) if is_patch else writer.update(body)))
        for one in debugging.added(body, (entry.made.get("spec") or {}).get("ephemeralContainers") or []):
            await debugging.begin(self._calls, caller, *entry.key, one)
        store = self._stores[target.resource]
        await store.refresh()
        found = store.find(target.namespace, target.name)
        return json_answer((found or entry).made)

    async def _evict(self, request: web.BaseRequest, caller: Caller, target: Target) -> web.Response:
        body = await body_of(request)
        options = options_of(body.get("deleteOptions") if isinstance(body, dict) else None, request.query)
        await Deleter(self._calls, caller, self._stores[target.resource], options).delete(target, evicts=True)
        return json_answer(success(target.name, "", "pods"), status=201)

    async def _scale(self, request: web.BaseRequest, caller: Caller, target: Target) -> web.Response:
        store = self._stores[target.resource]
        writer = self._writer(request, caller, target)
        if request.method in ("PUT", "PATCH"):
            body = await body_of(request, PATCHES if request.method == "PATCH" else OBJECTS)
            await writer.scale(body, request.content_type if request.method == "PATCH" else "")
        elif request.method != "GET":
            raise Failure(405, "a scale is got, updated or patched")
        made = await self._full(store, caller, target, store.find(target.namespace, target.name))
        if made is None:
            raise writer.missing()
        return json_answer(scale_object(made))

    async def _without_objects(
        self, request: web.BaseRequest, caller: Caller, target: Target, verb: str
    ) -> web.Response:
        resource = target.resource
        if verb not in resource.verbs:
            raise Failure(405, f"{verb or request.method} is not carried out on {resource.name}")
        if resource.group == "metrics.k8s.io":
            return json_answer(await extras.usage(self._calls, caller, resource, target.namespace, target.name))
        made = extras.review(resource, await body_of(request, OBJECTS, MOST_VALUES_OF_REVIEW), caller)
        return json_answer(made, status=201)


def _is_there(resource: Resource, calls: Calls) -> bool:
    """Whether what has it runs here."""
    kind = resource.kind
    if kind is None or not kind.module:
        return True
    return any(calls.is_served(service.rpartition(".")[2]) for service in shown_of(kind).services)
