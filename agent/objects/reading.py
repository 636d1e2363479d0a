# SPDX-License-Identifier: Apache-2.0
"""A file of manifests becomes the objects in it, of all kinds, and all that is wrong with each.

One engine for whoever wants to know: what is in force on the node, `apply`, `validate` and rehearsals. What a kind
means is told by its plane in a `Reading`; an object whose plane does not run here is taken as it is written.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from agent.config.shape import Shape
from agent.config.strict_yaml import Tree, UnreadableYaml, plain
from agent.kinds.foreign import FOREIGN_KINDS
from agent.kinds.parts import items, part
from agent.kinds.registry import CLUSTER_KINDS, MANIFEST_KINDS, OUR_GROUPS
from agent.model.finding import Finding, shown, suggestion
from agent.model.manifests.snapshot import Key
from agent.model.pods.source_folder import SourceFolder
from agent.objects.decoding import documents_of

DEFAULT_NAMESPACE = "default"
OWNERS = b'"ownerReferences"'


class Object(msgspec.Struct, frozen=True):
    """One object of a file. `value` is what its plane made of it, None where no plane here reads it. `where` is the
    file and line, `document` its JSON; that of a directory has none."""

    key: Key
    value: Any
    path: str
    where: str
    document: bytes = b""


class Complaint(msgspec.Struct, frozen=True):
    """`plane` has the object; empty for what is wrong with the file. `is_duplicate`: another has its name or mark."""

    plane: str
    finding: Finding
    is_duplicate: bool = False


Objects = Mapping[Key, Object]
Bound = Callable[[Objects, Objects], Sequence[tuple[Key, Finding]]]


class Reading(msgspec.Struct, frozen=True):
    """How a plane reads its kinds.

    `read` makes a value of a document, or None with findings. `warnings` are remarks, by path, on a document
    and its value. `marks` are
    what no other object may have beside its name, each with its path and words. `refuses` says why a file has too much
    in it. `read_folder` makes an object of a directory. `bound` says of what is chosen, beside what was in
    force, which newcomers and edits are too much, and why. `strict` are faults, by path, that
    keep an object of a file from being carried out in part: whoever writes one is told at once. `holds_what_was`: what
    an earlier kepd left stays until it is known what was in force. Two readings with the same `settings` read alike.
    """

    plane: str
    kinds: frozenset[str]
    read: Callable[[Tree, str, str, list[Finding]], object | None]
    warnings: Callable[[Tree, Any], Iterable[tuple[str, str]]] | None = None
    marks: Callable[[Any], Iterable[tuple[str, str]]] | None = None
    refuses: Callable[[Sequence[Tree]], str] | None = None
    read_folder: Callable[[SourceFolder], tuple[Object | None, Sequence[Finding]]] | None = None
    bound: Bound | None = None
    strict: Callable[[Tree, str], Iterable[tuple[str, str]]] | None = None
    holds_what_was: bool = False
    settings: object = None


class FileRead(msgspec.Struct, frozen=True):
    """What a file says. `was_good`: it was without fault at some time, so all that it had is known."""

    content: bytes | SourceFolder
    objects: Objects = {}
    complaints: tuple[Complaint, ...] = ()
    warnings: tuple[Finding, ...] = ()
    foreign: tuple[Finding, ...] = ()
    """Objects of kinds that are not carried out here."""
    was_good: bool = True


class Readings:
    """Those of all planes that run, or that are asked."""

    def __init__(self, readings: Iterable[Reading]) -> None:
        self.all = tuple(readings)
        self._by_kind = {kind: reading for reading in self.all for kind in reading.kinds}
        self.settings = tuple((reading.plane, reading.settings) for reading in self.all)

    def of(self, kind: str) -> Reading | None:
        return self._by_kind.get(kind)


class _List(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str = ""
    kind: str = ""
    metadata: object = None
    items: object = None


class _File:
    def __init__(self, path: str, readings: Readings, known_kinds: Iterable[str], *, is_strict: bool) -> None:
        self.path = path
        self._is_strict = is_strict
        self.objects: dict[Key, Object] = {}
        self.complaints: list[Complaint] = []
        self.warnings: list[Finding] = []
        self.foreign: list[Finding] = []
        self.count = 0
        self._readings = readings
        self._known = tuple(known_kinds)

    def complain(self, finding: Finding, plane: str = "") -> None:
        self.complaints.append(Complaint(plane, finding))

    def take(self, tree: Tree, place: str = "", head: Mapping[str, Tree] = {}) -> None:
        """`place` is the object's in a list, and `head` what its list says for all."""
        if tree.kind != "map":
            self.complain(Finding(tree.where, place, "must be a map with apiVersion, kind and metadata"))
            return
        if missing := {name: entry for name, entry in head.items() if name not in tree.entries}:
            tree = replace(tree, entries={**missing, **tree.entries})
        given = tree.entries.get("kind")
        kind = str(given.scalar or "") if given is not None else ""
        if given is not None and kind.endswith("List") and (kind == "List" or "items" in tree.entries):
            self._take_list(tree, given, place)
            return
        self.count += 1
        reading = self._readings.of(kind)
        if (reading is not None or kind in self._known) and not _has_foreign_group(tree):
            self._take_known(tree, kind, reading, place)
        elif given is None:
            text = f"is missing; known are {', '.join(self._known)}"
            self.complain(Finding(tree.where, _below(place, "kind"), text))
        elif _is_foreign(tree, kind):
            serves = FOREIGN_KINDS.get(kind, "")
            text = f"{shown(kind)} is not carried out here{'; ' + serves if serves else ''}"
            self.foreign.append(Finding(tree.where, _below(place, "kind"), text))
        else:
            hint = suggestion(kind, self._known) or "; known are " + ", ".join(self._known)
            text = f"{shown(plain(given))} is not known here{hint}"
            self.complain(Finding(given.where, _below(place, "kind"), text))

    def _take_list(self, tree: Tree, kind: Tree, place: str) -> None:
        findings: list[Finding] = []
        Shape(findings).read(tree, _List, "")
        version, items = tree.entries.get("apiVersion"), tree.entries.get("items")
        head: dict[str, Tree] = {}
        if kind.scalar != "List":
            head = {"kind": replace(kind, scalar=str(kind.scalar).removesuffix("List"))}
            head |= {"apiVersion": version} if version is not None else {}
        elif version is None or version.scalar != "v1":
            findings.append(Finding((version or tree).where, "apiVersion", "must be v1"))
        if items is None or items.kind != "list":
            findings.append(Finding((items or tree).where, "items", "must be a list"))
        for finding in findings:
            self.complain(replace(finding, path=_below(place, finding.path)))
        for index, item in enumerate(items.items if items is not None else ()):
            self.take(item, _below(place, f"items[{index}]"), head)

    def _take_known(self, tree: Tree, kind: str, reading: Reading | None, place: str) -> None:
        try:
            if reading is not None:
                self._take_object(tree, kind, reading, place)
            else:
                self._put(self._object(tree, kind, None), place)
        except Exception as error:  # noqa: BLE001 - one object that kepd fails at must not hold up all others
            # What an exception says may have a value of a Secret.
            text = f"kepd failed inside while it read this: {type(error).__name__}; a last good version stays in force"
            self.complain(Finding(tree.where, place, text), reading.plane if reading is not None else "")

    def _take_object(self, tree: Tree, kind: str, reading: Reading, place: str) -> None:
        findings: list[Finding] = []
        value = reading.read(tree, kind, self.path, findings)
        if self._is_strict and reading.strict is not None:
            findings += [Finding(tree.where, path, text) for path, text in reading.strict(tree, kind)]
        for finding in findings:
            self.complain(replace(finding, path=_below(place, finding.path)), reading.plane)
        if reading.warnings is not None:
            remarks = reading.warnings(tree, value)
            self.warnings += [Finding(tree.where, _below(place, path), text) for path, text in remarks]
        if value is not None:
            self._put(self._object(tree, kind, value), place, reading)

    def _object(self, tree: Tree, kind: str, value: object) -> Object:
        return Object(key_of(tree, kind), value, self.path, tree.where, msgspec.json.encode(plain(tree)))

    def _put(self, object_: Object, place: str, reading: Reading | None = None) -> None:
        plane = reading.plane if reading is not None else ""
        if object_.key in self.objects:
            text = f"{called(object_.key)} is already in {self.objects[object_.key].where}; this one is ignored"
            finding = Finding(object_.where, _below(place, "metadata.name"), text)
            self.complaints.append(Complaint(plane, finding, is_duplicate=True))
        else:
            self.objects[object_.key] = object_

    def leave_out_owned(self) -> None:
        """A cluster was asked for all that it has: what another object of the file makes is made by it anew."""
        everything = dict(self.objects)
        for object_ in [each for each in everything.values() if OWNERS in each.document]:
            if (owner := _owner_of(object_)) in everything:
                del self.objects[object_.key]
                text = f"{called(object_.key)} is made by {called(owner)}, which is in this file too"
                self.foreign.append(Finding(object_.where, "metadata.ownerReferences", text))

    def leave_out(self, reading: Reading, why: str) -> None:
        """Nothing of a plane's is taken of a file that has too much of it."""
        self.objects = {key: value for key, value in self.objects.items() if key[0] not in reading.kinds}
        self.complain(Finding(self.path, "", why), reading.plane)


def read_file(
    path: str, content: bytes, readings: Readings, known_kinds: Iterable[str], *, is_strict: bool = False
) -> FileRead:
    """`known_kinds` are those of planes that need not run here."""
    trees, faults = documents_of(content, path)
    file = _File(path, readings, known_kinds, is_strict=is_strict)
    for fault in faults:
        file.complain(fault)
    if not faults:
        for tree in trees:
            file.take(tree)
        file.leave_out_owned()
        for reading in readings.all:
            if reading.refuses is not None and (why := reading.refuses(trees)):
                file.leave_out(reading, why)
        if not file.count and not file.complaints:
            file.warnings.append(Finding(path, "", "says nothing: it holds no object, so nothing comes of it"))
    return FileRead(
        content, file.objects, tuple(file.complaints), tuple(file.warnings), tuple(file.foreign),
        was_good=not file.complaints,
    )  # fmt: skip


def read_folder(folder: SourceFolder, readings: Readings) -> FileRead:
    for reading in readings.all:
        if reading.read_folder is not None:
            object_, findings = reading.read_folder(folder)
            objects = {object_.key: object_} if object_ is not None else {}
            complaints = tuple(Complaint(reading.plane, finding) for finding in findings)
            return FileRead(folder, objects, complaints, was_good=not complaints)
    return FileRead(folder)


def documents_in(files: Mapping[str, bytes], *more_kinds: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each object of files as it is written, with its place, for who looks at no node. Raises UnreadableYaml."""
    for path, content in files.items():
        file = read_file(path, content, Readings(()), (*MANIFEST_KINDS, *more_kinds))
        if file.complaints:
            raise UnreadableYaml(file.complaints[0].finding)
        yield from ((object_.where, msgspec.json.decode(object_.document)) for object_ in file.objects.values())


def _is_foreign(tree: Tree, kind: str) -> bool:
    """Whether it cannot be a slip of the pen in a kind of ours."""
    group = _group_of(tree)
    return kind in FOREIGN_KINDS or (bool(group) and group not in OUR_GROUPS)


def _has_foreign_group(tree: Tree) -> bool:
    """One that somebody has a domain for; those without are Kubernetes' own, also of long ago."""
    group = _group_of(tree)
    return "." in group and group not in OUR_GROUPS


def _group_of(tree: Tree) -> str:
    version = tree.entries.get("apiVersion")
    group, slash, _ = str(version.scalar if version is not None else "").partition("/")
    return group if slash else ""


def _owner_of(object_: Object) -> Key:
    metadata = part(msgspec.json.decode(object_.document), "metadata")
    owner = next((each for each in items(metadata, "ownerReferences") if each.get("controller") is True), {})
    return str(owner.get("kind", "")), object_.key[1], str(owner.get("name", ""))


def key_of(tree: Tree, kind: str) -> Key:
    metadata = tree.entries.get("metadata")
    named = {name: entry.scalar for name, entry in metadata.entries.items()} if metadata is not None else {}
    namespace = "" if kind in CLUSTER_KINDS else str(named.get("namespace") or DEFAULT_NAMESPACE)
    return kind, namespace, str(named.get("name") or "")


def called(key: Key) -> str:
    return f"{key[0]} {'/'.join(filter(None, key[1:]))}"


def _below(place: str, path: str) -> str:
    return ".".join(filter(None, (place, path)))
