# SPDX-License-Identifier: Apache-2.0
"""The objects of the manifest directory as things that people list, apply and delete, whatever plane carries them out.

Every call reads the directory again, so that two calls in a row see each other. A change goes to the file where the
object is; a new object gets a file of its own. The files of one apply change together or not at all (`deed.py`), and
an edit by hand that comes between read and write stays: the change is made again from it.
Never: shows a Secret's value to who may only read (`hidden.py`).
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Protocol

import msgspec
import structlog

from agent.config.restarted import kept_restart
from agent.config.strict_yaml import UnreadableYaml
from agent.kinds.parts import part
from agent.kinds.registry import BY_WRITTEN, CARRIED_OUT, CLUSTER_KINDS, KINDS
from agent.model.finding import Finding, suggestion
from agent.model.nodes.manifest_report import AppliedObject, ListedObject
from agent.model.pods.source_folder import SourceFolder
from agent.model.refused import Refused
from agent.objects import hidden
from agent.objects.admitting import NOTHING, InForce
from agent.objects.decoding import PREPARED, Content
from agent.objects.differences import difference_of
from agent.objects.documents import (
    ManifestObject,
    dumped,
    own_text,
    read_objects,
    replaced,
)
from agent.objects.hidden import Key
from agent.objects.implied import implied
from agent.objects.patches import BadPatch, patched
from agent.objects.pod_identity import with_identity, with_stamps
from agent.objects.run.deed import Change, change_all
from agent.objects.run.writer import (
    FILE_MODE,
    MOST_TRIES,
    SECRET_MODE,
    Edited,
    take_out,
)

log = structlog.get_logger(plane="api")

LONGEST_FILE_NAME = 250
# The node knows since when.
DATED = CARRIED_OUT | {"NetworkPolicy"}
# Templates that workloads had.
MADE_KINDS, MADE = frozenset(kind.api for kind in KINDS if kind.is_made or kind.is_also_made), "kepd"
# Of this process: who may only read learns from a version whether something changed, and nothing of what it says.
VERSION_KEY = secrets.token_bytes(32)


class Placed(msgspec.Struct, frozen=True):
    path: str
    found: ManifestObject
    version: str


def version_of(content: Content) -> str:
    """The same for the same content, for as long as this process lives."""
    return blake2b(msgspec.json.encode(content, order="deterministic"), key=VERSION_KEY, digest_size=12).hexdigest()


class MadeObjects(Protocol):
    """Jobs of CronJobs, claims of StatefulSets and the like: their manifests by who made them."""

    @property
    def files(self) -> Mapping[str, bytes]: ...

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
        revision: Callable[[Key], int] = lambda _: 0,
        made: Callable[[], Sequence[Content]] = list,
        jobs: MadeObjects | None = None,
        uid_of: Callable[[str, str], str] = lambda _namespace, _name: "",
        in_force: Callable[[], InForce | None] = lambda: None,
    ) -> None:
        """`check` says what is wrong with a manifest; `end_pod` ends one, where pods run here; `suffix` is what their
        names have more than those of their manifests; `status` is what has become of a workload,
        `created_s` since when it has been known, 0 for never, and `revision` the number of its template; `made` are
        objects that no file has and that can only be read, `jobs` those that can be deleted as well; `uid_of`
        is of a pod that runs, by its namespace and the name in its manifest, empty for another; `in_force` is None
        where nobody follows the directory."""
        self._uid_of = uid_of
        self._in_force = in_force
        self._made = made
        self._status = status
        self._created_s, self._revision = created_s, revision
        self._directory = directory
        self.files = read
        self._read = read if jobs is None else lambda: {**read(), **jobs.files}
        self._jobs = jobs
        self._folders = folders
        self._check = check
        self._end_pod = end_pod
        self._suffix = suffix
        self._lock = asyncio.Lock()
        self._known: dict[str, tuple[bytes, list[Placed]]] = {}
        """Files as they were at the last look, taken apart; most are the same at the next."""

    async def listed(self, kind: str, *, is_whole: bool = False) -> list[ListedObject]:
        """`is_whole`: with all values, for who may read the files."""
        show = hidden.whole if is_whole else hidden.shown
        in_force = self._in_force() or NOTHING
        found = await asyncio.to_thread(lambda: list(self._listed(kind, show, in_force)))
        # What runs is asked on the loop, where it changes.
        listed = [self._with_status(each) if each.kind in DATED else each for each in found]
        made = [each for each in self._made() if kind in ("", each["kind"])] if kind in ("", *MADE_KINDS) else ()
        return [*listed, *(show(_key_of(each), each, MADE, version_of(each)) for each in made)]

    def _with_status(self, listed: ListedObject) -> ListedObject:
        key = listed.kind, listed.namespace, listed.name
        content = hidden.with_creation(msgspec.json.decode(listed.content), self._created_s(key))
        if number := self._revision(key):
            content = hidden.with_annotation(content, hidden.REVISION, str(number))
        if listed.kind != "NetworkPolicy":
            status = dict(self._status(key) or {})
            # What an API server would fill in beside what its author says.
            if spec := part(status, "spec"):
                content["spec"] = {**part(content, "spec"), **spec}
                del status["spec"]
            content = {**content, "status": status}
        return msgspec.structs.replace(listed, content=msgspec.json.encode(content))

    def _listed(
        self, kind: str, show: Callable[[Key, Content, str, str], ListedObject], in_force: InForce
    ) -> Iterator[ListedObject]:
        """What is in force, and what was written a moment ago."""
        seen, files = set(), self._read()
        for placed in self._placed(files):
            listed = placed.found
            is_wanted = listed.kind in BY_WRITTEN and kind in ("", listed.kind) and listed.key not in seen
            if is_wanted and in_force.takes(placed.path, files[placed.path], listed.key):
                seen.add(listed.key)
                yield show(listed.key, listed.content, listed.where, placed.version)
        for key, object_ in in_force.objects.items():
            if kind in ("", key[0]) and key not in seen and object_.document and in_force.is_stale(key):
                content = msgspec.json.decode(object_.document)
                yield show(key, content, object_.where, version_of(content))
        for folder in self._folders():
            if kind in ("", folder.kind) and folder.key not in seen:
                content = hidden.of_folder(folder)
                yield show(folder.key, content, folder.path, version_of(content))
        written = (each.found.key for _, of_file in self._known.values() for each in of_file)
        for key, content in implied(kind, {*written, *in_force.objects}):
            if key not in seen:
                yield show(key, content, "", version_of(content))

    async def manifest(self, key: Key) -> tuple[str, str, str]:
        if key[0] in MADE_KINDS:
            made = next((each for each in self._made() if _key_of(each) == key), None)
            if made is None and key[0] not in BY_WRITTEN:
                raise Refused("not_found", f"no {_name(key)} is remembered")
            if made is not None:
                return dumped(made), MADE, version_of(made)
        files = await asyncio.to_thread(self._read)
        placed = self._find(files, key)
        return own_text(files[placed.path], placed.found), placed.found.where, placed.version

    async def apply(
        self, content: bytes, *, dry_run: bool, create_only: bool = False, version: str = ""
    ) -> list[AppliedObject]:
        """`version`: the one that the single object must have in its file still."""
        async with self._lock:
            return await asyncio.to_thread(
                self._applied, content, dry_run=dry_run, create_only=create_only, version=version
            )

    async def patch(self, key: Key, patch: object, how: str, *, dry_run: bool, version: str = "") -> AppliedObject:
        """`how`: json, merge or strategic."""
        async with self._lock:
            return await asyncio.to_thread(self._patched, key, patch, how, dry_run=dry_run, version=version)

    def _patched(
        self, key: Key, patch: object, how: str, *, dry_run: bool, version: str, tries_left: int = MOST_TRIES
    ) -> AppliedObject:
        placed = self._find(self._read(), key)
        try:
            content = patched(placed.found.content, patch, how)
        except BadPatch as error:
            raise Refused("invalid", error.text, [Finding(placed.found.where, "patch", error.text)]) from error
        if _naming(content) != _naming(placed.found.content):
            text = f"the patch makes another object of {_name(placed.found.key)}; expected its kind, name and namespace"
            raise Refused("invalid", text, [Finding(placed.found.where, "patch", text)])
        manifest = dumped(content).encode()
        try:
            (applied,) = self._applied(manifest, dry_run=dry_run, create_only=False, version=version or placed.version)
        except Refused as error:
            # An edit by hand came between.
            if error.kind != "conflict" or version or not tries_left:
                raise
            return self._patched(key, patch, how, dry_run=dry_run, version="", tries_left=tries_left - 1)
        return applied

    def _applied(self, content: bytes, *, dry_run: bool, create_only: bool, version: str) -> list[AppliedObject]:
        wanted = self._wanted(content)
        if version and len(wanted) != 1:
            raise Refused("selection", f"a version is of one object; the manifest has {len(wanted)}")
        for _ in range(MOST_TRIES):
            before = self._read()
            now = dict(before)
            results = [self._put(now, content, each, create_only=create_only, version=version) for each in wanted]
            if dry_run:
                return results
            changed = {
                each.path: each.kind for each in sorted(results, key=_turn) if now[each.path] != before.get(each.path)
            }
            try:
                change_all(self._directory(), [
                    Change(path, before.get(path), now[path], SECRET_MODE if kind == "Secret" else FILE_MODE)
                    for path, kind in changed.items()
                ])  # fmt: skip
            except Edited as error:
                edited = error
                continue
            log.info("objects_applied", paths=list(changed), count=len(results))
            return results
        raise Refused("conflict", f"{edited.filename} is edited again and again; nothing was changed; try again")

    def _wanted(self, content: bytes) -> list[ManifestObject]:
        with PREPARED.holding(content, "manifest"):
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

    def _put(
        self, files: dict[str, bytes], content: bytes, one: ManifestObject, *, create_only: bool, version: str
    ) -> AppliedObject:
        """Into `files`, which are not written yet."""
        text = own_text(content, one)
        there = next((placed for placed in self._placed(files) if placed.found.key == one.key), None)
        if there is not None and create_only:
            raise Refused("exists", f"{_name(one.key)} is already in {there.found.where}")
        if version and (there is None or there.version != version):
            raise Refused("conflict", f"{_name(one.key)} is not as it was when it was read: it was changed meanwhile")
        if there is not None and one.kind != "Job" and self._is_made(there):
            # Whoever writes what was made for them has it in a manifest from now on.
            there = None
        lost = list(hidden.losses(one.kind, one.content, there.found.content if there is not None else None, one.where))
        if lost:
            raise Refused("invalid", "; ".join(map(str, lost)), lost)
        if there is not None:
            one, text = with_stamps(one, text, there.found)
        if one.kind == "Pod":
            one, text = with_identity(one, text, there.found if there is not None else None, self._uid_of)
        if there is None:
            if folder := next((folder for folder in self._folders() if folder.key == one.key), None):
                raise Refused("precondition", f"{_name(one.key)} is the directory {folder.path}; change its files")
            path = self._new_path(one.key)
            more = files.get(path, b"").strip()
            files[path] = (more + b"\n---\n" if more else b"") + text.encode()
            diff = difference_of({}, one, "", text, path)
            return _applied(one, "created", path, diff)
        path, old = there.path, there.found
        if (kept := kept_restart(one.content, old.content)) is not None:
            one, text = msgspec.structs.replace(one, content=kept), dumped(kept)
        if old.content == one.content:
            return _applied(one, "unchanged", path)
        if self._is_made(there):
            text = f"{_name(one.key)} was made by {path}; change that one, and delete this one to end it"
            raise Refused("precondition", text)
        diff = difference_of(old.content, one, own_text(files[path], old), text, path)
        try:
            siblings = [placed.found for placed in self._known[path][1]]
            files[path] = replaced(path, files[path], old, text, one.content, before=siblings)
        except UnreadableYaml as error:
            raise Refused("precondition", str(error.finding)) from error
        return _applied(one, "configured", path, diff)

    def _is_made(self, placed: Placed) -> bool:
        return self._jobs is not None and placed.path in self._jobs.files

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

    async def delete(
        self, key: Key, grace_s: float | None, *, dry_run: bool, evicts: bool = False, version: str = ""
    ) -> str:
        def check(content: Content) -> None:
            if version and version_of(content) != version:
                raise Refused("conflict", f"{_name(key)} is not as it was when it was read: it was changed meanwhile")

        async with self._lock:
            files = await asyncio.to_thread(self._read)
            one = self._find(files, key)
            kind, namespace, name = one.found.key
            check(one.found.content)
            if not dry_run and kind == "Pod" and self._end_pod is not None:
                await self._end_pod(namespace, name + self._suffix(), grace_s, evicts)
            elif not dry_run and not (self._jobs is not None and await self._jobs.drop(one.found.key)):
                await asyncio.to_thread(take_out, one.path, one.found.key, check)
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


def _applied(made: ManifestObject, result: str, path: str, diff: str = "") -> AppliedObject:
    kind, namespace, name = made.key
    version = version_of(made.content)
    return AppliedObject(
        kind=kind, namespace=namespace, name=name, result=result, path=path, diff=diff, version=version
    )


def _apart(path: str, content: bytes) -> Iterator[Placed]:
    with suppress(UnreadableYaml):
        for one in read_objects(path, content):
            yield Placed(path, one, version_of(one.content))


def _key_of(made: Content) -> Key:
    named = part(made, "metadata")
    return str(made["kind"]), str(named.get("namespace", "")), str(named.get("name", ""))


def _naming(made: Content) -> list[object]:
    metadata = made.get("metadata")
    named = [metadata.get(field) for field in ("name", "namespace")] if isinstance(metadata, dict) else [metadata]
    return [made.get("apiVersion"), made.get("kind"), *named]


def _turn(one: AppliedObject) -> int:
    """What others need is written before those that need it."""
    return BY_WRITTEN[one.kind].turn if one.kind in BY_WRITTEN else 0


def _name(key: Key) -> str:
    kind, namespace, name = key
    return f"{kind} {namespace}/{name}" if namespace else f"{kind} {name}"
