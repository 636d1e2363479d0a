# SPDX-License-Identifier: Apache-2.0
"""Strict access to one decoded manifest: every field has a type, every unknown name is told.

Owns: the walk with its field paths, and the list of findings that grows on the way. A ReadPart belongs to the reader of
one object and is thrown away with it.
Never: fills in a value that was not written; absent and null are the same, as for the API server.
Source of behaviour: strict field validation of the API server (KEP-2885).
"""

from collections.abc import Iterator, Mapping, Sequence

from agent.model.finding import Finding, shown, suggestion
from agent.topology.manifest.fields import KNOWN_FIELDS


class ManifestComplaints:
    """What is wrong with one object (errors) and what is worth saying about it (notes)."""

    def __init__(self, where: str, *, takes_unknown: bool = False) -> None:
        """`takes_unknown`: a field of another version of Kubernetes is told, and is no fault."""
        self.where = where
        self.takes_unknown = takes_unknown
        self.errors: list[Finding] = []
        self.notes: list[Finding] = []

    def error(self, path: str, text: str) -> None:
        self.errors.append(Finding(self.where, path, text))

    def note(self, path: str, text: str) -> None:
        self.notes.append(Finding(self.where, path, text))


class ReadPart:
    """A mapping inside a manifest, with the path that leads to it."""

    def __init__(
        self, complaints: ManifestComplaints, path: str, content: Mapping[str, object], place: str | None
    ) -> None:
        """`place` names the set of fields that may be here; None leaves the names alone."""
        self.complaints = complaints
        self.path = path
        self._content = content
        known = content if place is None else KNOWN_FIELDS[place]
        for name in content:
            if name not in known and complaints.takes_unknown:
                complaints.note(self.at(name), "unknown field; it is not looked at")
            elif name not in known:
                complaints.error(self.at(name), "unknown field" + suggestion(str(name), sorted(known)))

    def at(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else str(name)

    def has(self, name: str) -> bool:
        return self._content.get(name) is not None

    def raw(self, name: str) -> object:
        return self._content.get(name)

    def wrong(self, name: str, right: str) -> None:
        self.complaints.error(self.at(name), f"{shown(self._content.get(name))} is not valid here; expected {right}")

    def part(self, name: str, place: str | None) -> "ReadPart":
        """The mapping under `name`, an empty one if it is absent."""
        value = self._content.get(name)
        if value is not None and not isinstance(value, Mapping):
            self.wrong(name, "a mapping")
            value = None
        return ReadPart(self.complaints, self.at(name), value or {}, place)

    def parts(self, name: str, place: str | None) -> list["ReadPart"]:
        """The mappings in the list under `name`."""
        found = []
        for position, item in enumerate(self._items(name)):
            path = f"{self.at(name)}[{position}]"
            if isinstance(item, Mapping):
                found.append(ReadPart(self.complaints, path, item, place))
            else:
                self.complaints.error(path, f"{shown(item)} is not valid here; expected a mapping")
        return found

    def _items(self, name: str) -> Sequence[object]:
        value = self._content.get(name)
        if value is None:
            return ()
        if isinstance(value, (list, tuple)):
            return value
        self.wrong(name, "a list")
        return ()

    def optional_text(self, name: str) -> str | None:
        value = self._content.get(name)
        if value is None or isinstance(value, str):
            return value
        self.wrong(name, "a string (put it in quotes)")
        return None

    def text(self, name: str) -> str:
        return self.optional_text(name) or ""

    def optional_flag(self, name: str) -> bool | None:
        value = self._content.get(name)
        if value is None or isinstance(value, bool):
            return value
        self.wrong(name, "true or false")
        return None

    def optional_whole(self, name: str) -> int | None:
        value = self._content.get(name)
        if value is None or (isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**31):
            return value
        self.wrong(name, "a whole number of 32 bits")
        return None

    def texts(self, name: str) -> tuple[str, ...]:
        found = []
        for position, item in enumerate(self._items(name)):
            if isinstance(item, str):
                found.append(item)
            else:
                path = f"{self.at(name)}[{position}]"
                self.complaints.error(path, f"{shown(item)} is not valid here; expected a string (put it in quotes)")
        return tuple(found)

    def text_map(self, name: str) -> dict[str, str]:
        return dict(self._text_entries(name))

    def _text_entries(self, name: str) -> Iterator[tuple[str, str]]:
        entries = self._content.get(name)
        if entries is None:
            return
        if not isinstance(entries, Mapping):
            self.wrong(name, "a mapping")
            return
        for key, value in entries.items():
            if isinstance(key, str) and (value is None or isinstance(value, str)):
                yield key, value or ""
            else:
                path = f"{self.at(name)}[{key}]"
                self.complaints.error(path, f"{shown(value)} is not valid here; expected a string (put it in quotes)")
