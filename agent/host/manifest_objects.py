# SPDX-License-Identifier: Apache-2.0
"""The objects of the manifest directory as things that people list, apply and delete, whatever plane carries them out.

Every call reads the directory again, so that two calls in a row see each other. A change goes to the file where the
object is; a new object gets a file of its own. Files are replaced whole. Never: shows a Secret's value to who may only
read.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from difflib import unified_diff
from hashlib import sha256
from pathlib import Path
from typing import Protocol

import msgspec
import structlog

from agent.config.manifest_documents import (
    CLUSTER_KINDS,
    Content,
    ManifestObject,
    dumped,
    own_text,
    read_objects,
    replaced,
)
from agent.config.restarted import kept_restart
from agent.config.strict_yaml import UnreadableYaml
from agent.drivers.manifests.changing import FILE_MODE, SECRET_MODE, take_out, write_whole
from agent.kinds.registry import WORKLOADS
from agent.model.finding import Finding, suggestion
from agent.model.generation import spec_generation
from agent.model.nodes.manifest_report import AppliedObject, ListedObject
from agent.model.pods.shown_spec import LAST_APPLIED, without_copy, without_values
from agent.model.pods.source_folder import SourceFolder
from agent.model.refused import Refused

log = structlog.get_logger(plane="api")

Key = tuple[str, str, str]
LONGEST_FILE_NAME = 250
MOST_DIFF_LINES = 5000
# What others need is written before those that need it.
CARRIED_OUT = (*WORKLOADS, "CronJob")
DATED = (*CARRIED_OUT, "NetworkPolicy", "PodDisruptionBudget")
CREATION = "creationTimestamp"
# Templates that workloads had.
MADE_KINDS, MADE = ("ReplicaSet", "ControllerRevision"), "kepd"
LAST_KINDS = ("Service", "Pod", *CARRIED_OUT)
DEVICE_KINDS = ("ResourceClaim", "ResourceClaimTemplate", "DeviceClass", "ResourceSlice")
BUDGET = "PodDisruptionBudget"
KINDS = (
    "Pod",
    *CARRIED_OUT,
    BUDGET,
    "Service",
    "EndpointSlice",
    "ConfigMap",
    "Secret",
    "Node",
    "ServiceCIDR",
    "NetworkPolicy",
    *DEVICE_KINDS,
)
VALUES = ("data", "stringData", "binaryData")
# All of a Secret that who may read sees, beside the names of its keys: a slip in another name must not show a value.
OPEN_FIELDS = ("apiVersion", "kind", "metadata", "type", "immutable")


class Placed(msgspec.Struct, frozen=True):
    path: str
    found: ManifestObject


class MadeJobs(Protocol):
    """Jobs of CronJobs: their manifests by who made them."""

    files: Mapping[str, bytes]

    async def drop(self, key: Key) -> bool:
        """End one, if it is among them. Raises Refused."""


class ManifestObjects:
    def __init__(
        self,
        directory: Callable[[], Path],
        read: Callable[[], Mapping[str, bytes]],
        folders: Callable[[], Sequence[SourceFolder]],
        check: Callable[[bytes], Sequence[Finding]],
        end_pod: Callable[[str, str, float | None, bool], Awaitable[None]] | None = None,
        suffix: Callable[[], str] = lambda: "",
        *,
        status: Callable[[Key], Mapping[str, object] | None] = lambda _: None,
        created_s: Callable[[Key], float] = lambda _: 0.0,
        made: Callable[[], Sequence[Content]] = list,
        jobs: MadeJobs | None = None,
    ) -> None:
        """`check` says what is wrong with a manifest; `end_pod` ends one, where pods run here; `suffix` is what their
        names have more than those of their manifests; `status` is what has become of a workload,
        and `created_s` since when it has been known, 0 for never; `made` are objects that no file has and that can
        only be read, and `jobs` those that can be deleted as well."""
        self._made = made
        self._status = status
        self._created_s = created_s
        self._directory = directory
        self._read = read if jobs is None else lambda: {**read(), **jobs.files}
        self._jobs = jobs
        self._folders = folders
        self._check = check
        self._end_pod = end_pod
        self._suffix = suffix
        self._lock = asyncio.Lock()
        self._known: dict[str, tuple[bytes, list[Placed]]] = {}
        """Files as they were at the last look, taken apart; most are the same at the next."""

    async def listed(self, kind: str) -> list[ListedObject]:
        found = await asyncio.to_thread(lambda: list(self._listed(kind)))
        # What runs is asked on the loop, where it changes.
        listed = [self._with_status(one) if one.kind in DATED else one for one in found]
        made = [one for one in self._made() if kind in ("", one["kind"])] if kind in ("", *MADE_KINDS) else ()
        return [*listed, *(_shown(_key_of(one), one, MADE) for one in made)]

    def _with_status(self, one: ListedObject) -> ListedObject:
        key = one.kind, one.namespace, one.name
        content = _with_creation(msgspec.json.decode(one.content), self._created_s(key))
        if one.kind != "NetworkPolicy":
            content = {**content, "status": self._status(key) or {}}
        return msgspec.structs.replace(one, content=msgspec.json.encode(content))

    def _listed(self, kind: str) -> Iterator[ListedObject]:
        seen = set()
        for one in self._placed(self._read()):
            if one.found.kind in KINDS and kind in ("", one.found.kind) and one.found.key not in seen:
                seen.add(one.found.key)
                yield _shown(one.found.key, one.found.content, one.found.where)
        for folder in self._folders():
            if kind in ("", folder.kind) and folder.key not in seen:
                yield _shown(folder.key, _of_folder(folder), folder.path)

    async def manifest(self, key: Key) -> tuple[str, str]:
        if key[0] in MADE_KINDS:
            found = next((one for one in self._made() if _key_of(one) == key), None)
            if found is None:
                raise Refused("not_found", f"no {_name(key)} is remembered")
            return dumped(found), MADE
        files = await asyncio.to_thread(self._read)
        one = self._find(files, key)
        return own_text(files[one.path], one.found), one.found.where

    async def apply(self, content: bytes, *, dry_run: bool, create_only: bool = False) -> list[AppliedObject]:
        async with self._lock:
            return await asyncio.to_thread(self._apply, content, dry_run=dry_run, create_only=create_only)

    def _apply(self, content: bytes, *, dry_run: bool, create_only: bool) -> list[AppliedObject]:
        wanted = self._wanted(content)
        before = self._read()
        now = dict(before)
        results = [self._put(now, content, one, create_only=create_only) for one in wanted]
        if not dry_run:
            changed = {
                one.path: one.kind for one in sorted(results, key=_turn) if now[one.path] != before.get(one.path)
            }
            for path, kind in changed.items():
                _write(path, now[path], SECRET_MODE if kind == "Secret" else FILE_MODE)
            log.info("objects_applied", paths=list(changed), count=len(results))
        return results

    def _wanted(self, content: bytes) -> list[ManifestObject]:
        try:
            wanted = read_objects("manifest", content)
        except UnreadableYaml as error:
            raise Refused("invalid", str(error.finding), [error.finding]) from error
        findings = list(self._check(content))
        keys = [one.key for one in wanted]
        twice = [one for place, one in enumerate(wanted) if one.key in keys[:place]]
        findings += [Finding(one.where, "metadata.name", f"{_name(one.key)} is there twice") for one in twice]
        if findings:
            raise Refused("invalid", "; ".join(map(str, findings)), findings)
        if not wanted:
            raise Refused("invalid", "the manifest has no object")
        return wanted

    def _put(self, files: dict[str, bytes], content: bytes, one: ManifestObject, *, create_only: bool) -> AppliedObject:
        """Into `files`, which are not written yet."""
        kind, namespace, name = one.key
        text = own_text(content, one)
        there = next((placed for placed in self._placed(files) if placed.found.key == one.key), None)
        if there is not None and create_only:
            raise Refused("precondition", f"{_name(one.key)} is already in {there.found.where}")
        if there is None:
            if folder := next((folder for folder in self._folders() if folder.key == one.key), None):
                raise Refused("precondition", f"{_name(one.key)} is the directory {folder.path}; change its files")
            path = self._new_path(one.key)
            more = files.get(path, b"").strip()
            files[path] = (more + b"\n---\n" if more else b"") + text.encode()
            diff = _difference({}, one, "", text, path)
            return AppliedObject(kind=kind, namespace=namespace, name=name, result="created", path=path, diff=diff)
        path, old = there.path, there.found
        if (kept := kept_restart(one.content, old.content)) is not None:
            one, text = msgspec.structs.replace(one, content=kept), dumped(kept)
        if old.content == one.content:
            return AppliedObject(kind=kind, namespace=namespace, name=name, result="unchanged", path=path)
        if self._jobs is not None and path in self._jobs.files:
            text = (
                f"{_name(one.key)} was made by {path}; change that one for the next Job, and delete this one to end it"
            )
            raise Refused("precondition", text)
        diff = _difference(old.content, one, own_text(files[path], old), text, path)
        try:
            files[path] = replaced(path, files[path], old, text, one.content)
        except UnreadableYaml as error:
            raise Refused("precondition", str(error.finding)) from error
        return AppliedObject(kind=kind, namespace=namespace, name=name, result="configured", path=path, diff=diff)

    def _placed(self, files: Mapping[str, bytes]) -> Iterator[Placed]:
        """Of files that can be taken apart; about the others their plane complains."""
        known = self._known
        now = {}
        for path in sorted(files):
            before = known.get(path)
            is_same = before is not None and before[0] == files[path]
            now[path] = before if before is not None and is_same else (files[path], list(_apart(path, files[path])))
        self._known = now
        for _, found in now.values():
            yield from found

    def _new_path(self, key: Key) -> str:
        kind, namespace, name = key
        directory = self._directory()
        if directory.is_file():
            raise Refused("precondition", f"{directory} is one file and no directory; write new objects into it")
        stem = f"kepctl-{namespace}-{name}" if kind == "Pod" else ".".join(filter(None, (f"kepctl-{kind}", *key[1:])))
        if len(stem) > LONGEST_FILE_NAME:
            stem = f"{stem[:180]}-{sha256(stem.encode()).hexdigest()[:16]}"
        return str(directory / f"{stem}.yaml")

    async def delete(self, key: Key, grace_s: float | None, *, dry_run: bool, evicts: bool = False) -> str:
        async with self._lock:
            files = await asyncio.to_thread(self._read)
            one = self._find(files, key)
            kind, namespace, name = one.found.key
            if not dry_run and kind == "Pod" and self._end_pod is not None:
                await self._end_pod(namespace, name + self._suffix(), grace_s, evicts)
            elif not dry_run and not (self._jobs is not None and await self._jobs.drop(one.found.key)):
                await asyncio.to_thread(take_out, one.path, one.found.key)
            log.info("object_deleted", kind=kind, namespace=namespace, name=name, path=one.path, dry_run=dry_run)
            return one.path

    def _find(self, files: Mapping[str, bytes], key: Key) -> Placed:
        """A pod also by its name on this node."""
        kind, namespace, name = key
        namespace = "" if kind in CLUSTER_KINDS else namespace
        short = name.removesuffix(self._suffix()) if kind == "Pod" and self._suffix() else name
        everything = list(self._placed(files))
        for called in (name, short):
            for one in everything:
                if one.found.key == (kind, namespace, called):
                    return one
        if folder := next((one for one in self._folders() if one.key == key), None):
            raise Refused("precondition", f"{_name(key)} is the directory {folder.path}; change or remove that")
        known = [one.found.name for one in everything if (one.found.kind, one.found.namespace) == (kind, namespace)]
        raise Refused("not_found", f"no {_name((kind, namespace, name))} is in the manifests{suggestion(name, known)}")


def _apart(path: str, content: bytes) -> Iterator[Placed]:
    with suppress(UnreadableYaml):
        for one in read_objects(path, content):
            yield Placed(path, one)


def _write(path: str, content: bytes, mode: int) -> None:
    try:
        write_whole(Path(path), content, mode)
    except OSError as error:
        text = f"{path} cannot be written: {error.strerror}; what was written before it stays"
        raise Refused("precondition", text) from error


def _key_of(made: Content) -> Key:
    metadata = made["metadata"]
    named = metadata if isinstance(metadata, dict) else {}
    return str(made["kind"]), str(named.get("namespace", "")), str(named.get("name", ""))


def _turn(one: AppliedObject) -> int:
    return LAST_KINDS.index(one.kind) if one.kind in LAST_KINDS else -1


def _name(key: Key) -> str:
    kind, namespace, name = key
    return f"{kind} {namespace}/{name}" if namespace else f"{kind} {name}"


def _shown(key: Key, content: Content, source: str) -> ListedObject:
    kind, namespace, name = key
    if kind == "Secret":
        shown = {field: value for field, value in _without_copy(content).items() if field in OPEN_FIELDS}
        content = {**shown, "data": dict.fromkeys(_keys(content), "")}
    elif kind == "Pod" and isinstance(spec := content.get("spec"), dict):
        content = {**_without_copy(content), "spec": without_values(spec)}
    elif kind == BUDGET:
        content = _with_generation(_without_copy(content))
    elif kind in CARRIED_OUT:
        content = _without_template_values(_with_generation(_without_copy(content)))
    elif kind == "ReplicaSet":
        content = _without_template_values(content)
    elif kind == "ControllerRevision" and isinstance(data := content.get("data"), dict):
        content = {**content, "data": _without_template_values(data)}
    encoded = msgspec.json.encode(content)
    return ListedObject(kind=kind, namespace=namespace, name=name, content=encoded, source=source)


def _with_creation(content: Content, created_s: float) -> Content:
    """What a manifest that was copied from a cluster says of it is not so here."""
    metadata = content.get("metadata")
    known = {name: value for name, value in metadata.items() if name != CREATION} if isinstance(metadata, dict) else {}
    if created_s:
        known[CREATION] = datetime.fromtimestamp(created_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {**content, "metadata": known}


def _with_generation(content: Content) -> Content:
    metadata = content.get("metadata")
    known = metadata if isinstance(metadata, dict) else {}
    return {**content, "metadata": {**known, "generation": spec_generation(content.get("spec"))}}


def _without_template_values(content: Content) -> Content:
    spec = content.get("spec")
    job = spec.get("jobTemplate") if isinstance(spec, dict) else None
    if isinstance(spec, dict) and isinstance(job, dict):
        return {**content, "spec": {**spec, "jobTemplate": _without_template_values(_without_copy(job))}}
    template = spec.get("template") if isinstance(spec, dict) else None
    inner = template.get("spec") if isinstance(template, dict) else None
    if not isinstance(spec, dict) or not isinstance(template, dict) or not isinstance(inner, dict):
        return content
    return {**content, "spec": {**spec, "template": {**_without_copy(template), "spec": without_values(inner)}}}


def _without_copy(content: Content) -> Content:
    """kubectl keeps the whole object, values too, in an annotation."""
    metadata = content.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    if not isinstance(metadata, dict) or not isinstance(annotations, dict) or LAST_APPLIED not in annotations:
        return content
    return {**content, "metadata": {**metadata, "annotations": without_copy(annotations)}}


def _keys(content: Content) -> list[str]:
    return [str(key) for part in VALUES if isinstance(given := content.get(part), dict) for key in given]


def _of_folder(folder: SourceFolder) -> Content:
    metadata: Content = {"name": folder.name, "namespace": folder.namespace}
    content: Content = {"apiVersion": "v1", "kind": folder.kind, "metadata": metadata}
    data: dict[str, object] = {}
    for key, value in folder.values.items():
        try:
            data[key] = value.decode()
        except UnicodeError:
            content["binaryData"] = {**(content.get("binaryData") or {}), key: value}  # type: ignore[dict-item]
    return {**content, "data": data}


def _difference(old: Content, new: ManifestObject, old_text: str, new_text: str, path: str) -> str:
    """As `diff -u` has it; of a Secret only which keys differ."""
    if new.kind == "Secret":
        old_text, new_text = _without_values(old, {}), _without_values(new.content, old)
    lines = old_text.splitlines(), new_text.splitlines()
    if sum(map(len, lines)) > MOST_DIFF_LINES:
        return f"{path}: {len(lines[0])} lines become {len(lines[1])}; too many to compare"
    return "\n".join(unified_diff(*lines, f"{path} (now)", f"{path} (then)", lineterm=""))


def _without_values(content: Content, before: Content) -> str:
    shown: Content = dict(_without_copy(content))
    for part in VALUES:
        given, old = content.get(part), before.get(part)
        if isinstance(given, dict):
            known = old if isinstance(old, dict) else {}
            is_other = {key for key, value in given.items() if before and known.get(key) != value}
            shown[part] = {key: "*** (changed)" if key in is_other else "***" for key in given}
    return dumped(shown) if content else ""
