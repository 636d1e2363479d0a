# SPDX-License-Identifier: Apache-2.0
"""Which objects are in force on this node: what was, and what the files say now, become what is.

The rules are the same for all kinds:
- a fault keeps the last good version, and everything that the file no longer names;
- what cannot be read keeps what it had;
- of two with one name, or one mark such as a uid, the one in force stays, else the first file's counts; whoever lost
  its name keeps what it had;
- a bound refuses the newcomer, never what is in force;
- only a file without fault that can be read and no longer names an object ends it.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from agent.kinds.registry import MANIFEST_KINDS
from agent.model.finding import Finding
from agent.model.manifests.snapshot import Key
from agent.model.pods.source_folder import SourceFolder
from agent.objects.reading import (
    Complaint,
    FileRead,
    Object,
    Objects,
    Reading,
    Readings,
    called,
    read_file,
    read_folder,
)

MOST_NAMED = 3
# YAML ends lines at some of them, and takes none of the others.
ESCAPED = {code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), 0x2028, 0x2029, 0xFEFF, 0xFFFE, 0xFFFF)}


class InForce(msgspec.Struct, frozen=True):
    """`complaints` are by file, `rivals` the places of objects that are ignored for this one. `settings` are those by
    which the files were read."""

    objects: Objects = {}
    files: Mapping[str, FileRead] = {}
    complaints: Mapping[str, tuple[Complaint, ...]] = {}
    rivals: Mapping[Key, tuple[str, ...]] = {}
    kept: tuple[Complaint, ...] = ()
    """Of files with faults: what stays in force as it was."""
    settings: object = None

    def of(self, kinds: Iterable[str]) -> list[Object]:
        wanted = frozenset(kinds)
        return [object_ for key, object_ in self.objects.items() if key[0] in wanted]

    def findings_of(self, plane: str) -> tuple[Finding, ...]:
        """Also what is wrong with a file as such, and what stays in force in spite of it."""
        told = [complaint for complaints in self.complaints.values() for complaint in complaints]
        return (
            *(complaint.finding for complaint in told if complaint.plane in ("", plane)),
            *(complaint.finding for complaint in self.kept if complaint.plane == plane),
        )

    def is_stale(self, key: Key) -> bool:
        """Whether its file says something else by now, with faults."""
        object_ = self.objects[key]
        return self.files[object_.path].objects.get(key) is not object_

    def takes(self, path: str, content: bytes, key: Key) -> bool:
        """Whether a file with this content says of an object what is in force, or has not been looked at yet."""
        file = self.files.get(path)
        if file is None or file.content != content:
            return True
        object_ = file.objects.get(key)
        return object_ is not None and self.objects.get(key) is object_

    def to_remember(self) -> tuple[dict[str, bytes], dict[str, SourceFolder]]:
        """What of each file and folder has to outlive this process: a text as it is where it has nothing but what is in
        force."""
        files: dict[str, bytes] = {}
        folders: dict[str, SourceFolder] = {}
        for path, objects in by_path(self.objects.values()).items():
            file = self.files[path]
            if isinstance(file.content, SourceFolder):
                folders[path] = dataclasses.replace(file.content, values=objects[0].value.data)
            elif not file.complaints and {id(object_) for object_ in objects} == set(map(id, file.objects.values())):
                files[path] = file.content
            else:
                files[path] = "\n---\n".join(
                    object_.document.decode().translate(ESCAPED) for object_ in objects
                ).encode()
        return files, folders


NOTHING = InForce()


def admit(
    files: Mapping[str, bytes],
    folders: Mapping[str, SourceFolder],
    before: InForce,
    readings: Readings,
    known_kinds: Sequence[str],
) -> InForce:
    """`folders` are directories that are an object each; a document with the same name comes first. The same content
    is the same objects, so that only what changed is read again."""
    held = by_path(before.objects.values())
    read: dict[str, FileRead] = {}
    for path, content in sorted(files.items()):
        last = _last(path, content, before, readings)
        read[path] = last or _since(before, read_file(path, content, readings, known_kinds), path, path in held)
    for path, folder in sorted(folders.items()):
        last = _last(path, folder, before, readings)
        read[path] = last or _since(before, read_folder(folder, readings), path, path in held)
    claims = _claimed(read, held, before, readings)
    objects = claims.chosen
    complaints = {path: (*file.complaints, *claims.lost.get(path, ())) for path, file in read.items()}
    kept = [object_ for object_ in objects.values() if read[object_.path].objects.get(object_.key) is not object_]
    return InForce(
        objects,
        read,
        {path: found for path, found in complaints.items() if found},
        {key: tuple(places) for key, places in claims.rivals.items()},
        tuple(_told(kept, readings)),
        readings.settings,
    )


def objects_in(files: Mapping[str, bytes], *readings: Reading) -> InForce:
    """Of these files alone, where nothing was before."""
    return admit(files, {}, NOTHING, Readings(readings), MANIFEST_KINDS)


def by_path(objects: Iterable[Object]) -> dict[str, list[Object]]:
    grouped: dict[str, list[Object]] = {}
    for object_ in objects:
        grouped.setdefault(object_.path, []).append(object_)
    return grouped


def _last(path: str, content: bytes | SourceFolder, before: InForce, readings: Readings) -> FileRead | None:
    last = before.files.get(path)
    is_same = last is not None and last.content == content and before.settings == readings.settings
    return last if is_same else None


def _since(before: InForce, file: FileRead, path: str, is_held: bool) -> FileRead:
    last = before.files.get(path)
    if last is None:
        return file
    if (is_held or last.objects) and isinstance(file.content, bytes) and not file.content.strip():
        text = "is empty; what it had ends when the file is removed"
        file = replace(file, complaints=(Complaint("", Finding(path, "", text)),), warnings=())
    return replace(file, was_good=not file.complaints or last.was_good)


class _Claims:
    """Who has which name and which marks; `lost` are complaints by file."""

    def __init__(self, readings: Readings) -> None:
        self.chosen: dict[Key, Object] = {}
        self.lost: dict[str, list[Complaint]] = {}
        self.rivals: dict[Key, list[str]] = {}
        self._readings = readings
        self._marks: dict[tuple[str, str], Object] = {}

    def begin(self) -> None:
        self.chosen, self._marks = {}, {}

    def claim(self, object_: Object) -> bool:
        """Whether the object gets its name and marks; if not, a complaint says who has them."""
        holder, field, what = self.chosen.get(object_.key), "metadata.name", ""
        marks = self.marks_of(object_)
        for mark_field, words in marks if holder is None else ():
            if (rival := self._marks.get((object_.key[0], words))) is not None:
                holder, field, what = rival, mark_field, words
        if holder is None:
            self.chosen[object_.key] = object_
            self._marks |= {(object_.key[0], words): object_ for _, words in marks}
            return True
        text = f"{what or called(object_.key)} is already in {holder.where}; this one is ignored"
        self.refuse(object_, Finding(object_.where, field, text), is_duplicate=True)
        self.rivals.setdefault(holder.key, []).append(object_.where)
        return False

    def refuse(self, object_: Object, finding: Finding, *, is_duplicate: bool = False) -> None:
        reading = self._readings.of(object_.key[0])
        plane = reading.plane if reading is not None else ""
        self.lost.setdefault(object_.path, []).append(Complaint(plane, finding, is_duplicate))

    def marks_of(self, object_: Object) -> Sequence[tuple[str, str]]:
        reading = self._readings.of(object_.key[0])
        return tuple(reading.marks(object_.value)) if reading is not None and reading.marks is not None else ()


def _claimed(
    read: Mapping[str, FileRead], held: Mapping[str, Sequence[Object]], before: InForce, readings: Readings
) -> _Claims:
    """Whoever loses a name or a mark, or is too much, has a fault: it, and what its file no longer names, stay as they
    were. That may take a name from another newcomer, so all claims are made again."""
    claims, refused = _Claims(readings), set[int]()
    with_faults = {path for path, file in read.items() if file.complaints}
    moved: dict[Key, Object] = {}
    """What stays as it was in the file that it moved to, where it is too much."""

    def rank(offer: Object) -> int:
        """What stays as it is comes before an edit, which may claim more, and an edit before a newcomer."""
        known = moved.get(offer.key) or before.objects.get(offer.key)
        if known is offer:
            return 0
        if known is None or known.path != offer.path:
            return 2
        return 0 if claims.marks_of(offer) == claims.marks_of(known) else 1

    while True:
        claims.begin()
        offers = list(moved.values())
        for path, file in read.items():
            fresh = file.objects
            if refused:
                fresh = {key: object_ for key, object_ in fresh.items() if id(object_) not in refused}
            offers += fresh.values()
            if path in with_faults:
                known_here = [object_ for object_ in held.get(path, ()) if object_.key not in fresh]
                offers += [each for each in known_here if each.key not in moved and id(each) not in refused]
        losers = [offer for offer in sorted(offers, key=rank) if not claims.claim(offer)]
        for object_, finding in _excess(claims.chosen, before.objects, readings) if not losers else ():
            claims.refuse(object_, finding)
            losers.append(object_)
            known = before.objects.get(object_.key)
            if known is not None and known.path != object_.path and object_.key not in moved:
                moved[object_.key] = replace(known, path=object_.path)
        # What a reading refuses though it stays as it was cannot be offered in any other way.
        if refused.issuperset(map(id, losers)):
            return claims
        refused |= set(map(id, losers))
        with_faults |= {loser.path for loser in losers}


def _excess(chosen: Objects, before: Objects, readings: Readings) -> Iterator[tuple[Object, Finding]]:
    for reading in readings.all:
        if reading.bound is not None:
            own = {key: object_ for key, object_ in chosen.items() if key[0] in reading.kinds}
            if not (fresh := [each for key, each in own.items() if not _is_as_before(before.get(key), each)]):
                continue
            try:
                yield from ((chosen[key], finding) for key, finding in reading.bound(own, before))
            except Exception as error:  # noqa: BLE001 - newcomers wait, and all others go on
                text = f"kepd failed inside while it counted this: {type(error).__name__}; what was in force stays"
                yield from ((object_, Finding(object_.where, "", text)) for object_ in fresh)


def _is_as_before(known: Object | None, object_: Object) -> bool:
    """Also where it has moved to another file."""
    return known is not None and known.value is object_.value


def _told(kept: Iterable[Object], readings: Readings) -> Iterator[Complaint]:
    grouped: dict[tuple[str, str], list[Key]] = {}
    for object_ in kept:
        reading = readings.of(object_.key[0])
        if reading is not None:
            grouped.setdefault((object_.path, reading.plane), []).append(object_.key)
    for (path, plane), keys in grouped.items():
        more = f" and {len(keys) - MOST_NAMED} more" if len(keys) > MOST_NAMED else ""
        names = ", ".join(map(called, keys[:MOST_NAMED]))
        yield Complaint(plane, Finding(path, "", f"the last good version of {names}{more} stays in force"))
