# SPDX-License-Identifier: Apache-2.0
"""Label selectors: what they are made of, what is wrong with one, what one matches.

Source of behaviour: k8s.io/apimachinery `pkg/labels`, `pkg/apis/meta/v1/validation`.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

LONGEST_NAME = 63
LONGEST_PREFIX = 253

NAME = re.compile(r"(?:[A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
PREFIX = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
INTEGER = re.compile(r"[+-]?[0-9]{1,30}")

NAME_IS = "letters, digits, '-', '_' and '.', with a letter or digit at both ends"

FaultKind = Literal["Required", "Forbidden", "Invalid"]


class Requirement(msgspec.Struct, frozen=True, gc=False):
    key: str
    operator: str
    values: tuple[str, ...] = ()

    def __str__(self) -> str:
        listed = ",".join(self.values)
        match self.operator:
            case "Exists":
                return self.key
            case "DoesNotExist":
                return f"!{self.key}"
            case "In" if len(self.values) == 1:
                return f"{self.key}={listed}"
            case "In" | "NotIn":
                return f"{self.key} {self.operator.lower()} ({listed})"
            case _:
                return f"{self.key} {self.operator} {listed}"


class LabelSelector(msgspec.Struct, frozen=True, gc=False):
    """A selector as written. No selector at all is None, which is not the same as an empty one."""

    match_labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    match_expressions: tuple[Requirement, ...] = ()


class SelectorFault(msgspec.Struct, frozen=True, gc=False):
    """What is wrong at `path` (below the selector) and what would be right."""

    path: str
    kind: FaultKind
    value: str
    right: str


class Matcher(msgspec.Struct, frozen=True, gc=False):
    """A selector made ready for asking. All requirements must hold; with none of them every label set matches."""

    requirements: tuple[Requirement, ...] = ()
    matches_nothing: bool = False

    @property
    def is_empty(self) -> bool:
        return not self.requirements and not self.matches_nothing

    def matches(self, labels: Mapping[str, str]) -> bool:
        if self.matches_nothing:
            return False
        return all(_holds(requirement, labels) for requirement in self.requirements)

    def narrowed(self, labels: Mapping[str, str]) -> "Matcher":
        """The same and these labels as well; what matches nothing goes on matching nothing."""
        if self.matches_nothing or not labels:
            return self
        return Matcher(requirements=_equalities(labels) + self.requirements)

    def __str__(self) -> str:
        if self.matches_nothing:
            return "nothing (no selector)"
        return ",".join(str(requirement) for requirement in self.requirements) or "everything (empty selector)"


def compile_selector(selector: LabelSelector | None) -> Matcher:
    if selector is None:
        return Matcher(matches_nothing=True)
    return Matcher(requirements=_equalities(selector.match_labels) + selector.match_expressions)


def equality_matcher(labels: Mapping[str, str]) -> Matcher:
    return Matcher(requirements=_equalities(labels))


def _equalities(labels: Mapping[str, str]) -> tuple[Requirement, ...]:
    return tuple(Requirement(key, "In", (value,)) for key, value in sorted(labels.items()))


def _holds(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value is not None and value in requirement.values
        case "NotIn":
            return value is None or value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case _:
            return False


def node_requirement_holds(requirement: Requirement, labels: Mapping[str, str]) -> bool | None:
    """Like a label requirement, with Gt and Lt. None: the requirement itself is malformed."""
    if label_key_faults(requirement.key) or any(label_value_faults(value) for value in requirement.values):
        return None
    count = len(requirement.values)
    match requirement.operator:
        case "In" | "NotIn":
            return _holds(requirement, labels) if count else None
        case "Exists" | "DoesNotExist":
            return None if count else _holds(requirement, labels)
        case "Gt" | "Lt":
            bound = parse_int64(requirement.values[0]) if count == 1 else None
            if bound is None:
                return None
            value = parse_int64(labels.get(requirement.key, ""))
            return value is not None and (value > bound if requirement.operator == "Gt" else value < bound)
        case _:
            return None


def parse_int64(text: str) -> int | None:
    if not INTEGER.fullmatch(text):
        return None
    value = int(text)
    return value if -(2**63) <= value < 2**63 else None


def label_key_faults(key: str) -> tuple[str, ...]:
    """Everything wrong with a label key, one entry per broken rule; the API server counts them the same way."""
    parts = key.split("/")
    if len(parts) > 2:
        return (f"a label key is NAME or PREFIX/NAME, NAME being {NAME_IS}",)
    faults = []
    if len(parts) == 2:
        prefix = parts[0]
        if not prefix:
            faults.append("the part before '/' must not be empty")
        else:
            if len(prefix.encode()) > LONGEST_PREFIX:
                faults.append(f"the part before '/' has at most {LONGEST_PREFIX} characters")
            if not PREFIX.fullmatch(prefix):
                faults.append("the part before '/' is a DNS name in lower case")
    name = parts[-1]
    if not name:
        faults.append("the name must not be empty")
    elif len(name.encode()) > LONGEST_NAME:
        faults.append(f"the name has at most {LONGEST_NAME} characters")
    if not NAME.fullmatch(name):
        faults.append(f"the name consists of {NAME_IS}")
    return tuple(faults)


def label_value_faults(value: str) -> tuple[str, ...]:
    faults = []
    if len(value.encode()) > LONGEST_NAME:
        faults.append(f"a label value has at most {LONGEST_NAME} characters")
    if value and not NAME.fullmatch(value):
        faults.append(f"a label value is empty or consists of {NAME_IS}")
    return tuple(faults)


def selector_faults(selector: LabelSelector | None) -> tuple[SelectorFault, ...]:
    """What makes the selector unusable, in the order in which it is written."""
    if selector is None:
        return ()
    faults: list[SelectorFault] = []
    for key, value in selector.match_labels.items():
        faults += _invalid("matchLabels", key, label_key_faults(key))
        faults += _invalid("matchLabels", value, label_value_faults(value))
    for position, requirement in enumerate(selector.match_expressions):
        faults += _requirement_faults(requirement, f"matchExpressions[{position}]")
    return tuple(faults)


def _requirement_faults(requirement: Requirement, path: str) -> Iterable[SelectorFault]:
    operator, values = requirement.operator, requirement.values
    if operator in ("In", "NotIn"):
        if not values:
            yield SelectorFault(f"{path}.values", "Required", "", f"operator {operator} needs at least one value")
    elif operator in ("Exists", "DoesNotExist"):
        if values:
            listed = ",".join(values)
            yield SelectorFault(f"{path}.values", "Forbidden", listed, f"operator {operator} takes no values")
    else:
        yield SelectorFault(f"{path}.operator", "Invalid", operator, "In, NotIn, Exists or DoesNotExist")
    yield from _invalid(f"{path}.key", requirement.key, label_key_faults(requirement.key))
    for position, value in enumerate(values):
        yield from _invalid(f"{path}.values[{position}]", value, label_value_faults(value))


def _invalid(path: str, value: str, rights: Iterable[str]) -> Iterable[SelectorFault]:
    return [SelectorFault(path, "Invalid", value, right) for right in rights]
