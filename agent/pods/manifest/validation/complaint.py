# SPDX-License-Identifier: Apache-2.0
"""One thing that is wrong with a value: path, kind, value and detail, worded as Kubernetes words it."""

import ipaddress
import re
from collections.abc import Sequence

import msgspec

from agent.model.finding import printable

LONGEST_VALUE = 120
DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?\Z")
DNS_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")
LONGEST_LABEL, LONGEST_SUBDOMAIN = 63, 253
LABEL_TEXT = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
    "with an alphanumeric character (e.g. 'my-name', or '123-abc')"
)

SUBDOMAIN_TEXT = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start "
    "and end with an alphanumeric character (e.g. 'example.com')"
)


def told(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = f'"{printable(value)}"' if isinstance(value, str) else str(value)
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 1] + "…"


class Complaint(msgspec.Struct, frozen=True):
    """`text` is everything after the path."""

    path: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"


class Complaints(msgspec.Struct):
    found: list[Complaint] = msgspec.field(default_factory=list)

    def required(self, path: str, detail: str = "") -> None:
        self._add(path, "Required value", detail)

    def invalid(self, path: str, value: object, detail: str) -> None:
        self._add(path, f"Invalid value: {told(value)}", detail)

    def forbidden(self, path: str, detail: str) -> None:
        self._add(path, "Forbidden", detail)

    def duplicate(self, path: str, value: object) -> None:
        self._add(path, f"Duplicate value: {told(value)}", "")

    def missing(self, path: str, value: object) -> None:
        self._add(path, f"Not found: {told(value)}", "")

    def too_many(self, path: str, count: int, most: int) -> None:
        self._add(path, f"Too many: {count}", f"must have at most {most} items")

    def one_of(self, path: str, value: str, supported: Sequence[str]) -> None:
        if value not in supported:
            listed = ", ".join(told(one) for one in supported)
            self._add(path, f"Unsupported value: {told(value)}", f"supported values: {listed}")

    def label(self, path: str, value: str) -> None:
        if not value:
            self.required(path)
        elif len(value) > LONGEST_LABEL:
            self.invalid(path, value, f"must be no more than {LONGEST_LABEL} characters")
        elif not DNS_LABEL.match(value):
            self.invalid(path, value, LABEL_TEXT)

    def ip(self, path: str, value: str) -> None:
        try:
            ipaddress.ip_address(value)
        except ValueError:
            self.invalid(path, value, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")

    def subdomain(self, path: str, value: str) -> None:
        if len(value) > LONGEST_SUBDOMAIN:
            self.invalid(path, value, f"must be no more than {LONGEST_SUBDOMAIN} characters")
        elif not DNS_SUBDOMAIN.match(value):
            self.invalid(path, value, SUBDOMAIN_TEXT)

    def at_least(self, path: str, value: int | None, least: int, text: str = "") -> None:
        if value is not None and value < least:
            self.invalid(path, value, text or f"must be greater than or equal to {least}")

    def one_type(self, path: str, given: Sequence[str], none: str, many: str) -> None:
        """Complain unless exactly one is given; `many` names the second and later ones."""
        if not given:
            self.required(path, none)
        for name in given[1:]:
            self.forbidden(f"{path}.{name}", many)

    def _add(self, path: str, kind: str, detail: str) -> None:
        self.found.append(Complaint(path, f"{kind}: {detail}" if detail else kind))
