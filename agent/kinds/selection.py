# SPDX-License-Identifier: Apache-2.0
"""Which objects of a kind are meant: by namespace, by labels, by names in full or for short.

Every command and every door asks here, so a word means the same everywhere. Raises Refused.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

import msgspec

from agent.kinds.kind import DEFAULT_NAMESPACE, Kind, Named
from agent.kinds.table import FACTS, Object, names_of
from agent.model.refused import Refused


class HasNames(Protocol):
    """A row of a table, whoever decoded it."""

    shown: str
    namespace: str
    name: str
    short: str


Row = TypeVar("Row", bound=HasNames)


class Scope(msgspec.Struct, frozen=True):
    """Empty: nothing is left out."""

    namespace: str = ""
    selector: str = ""


def scope_test(kind: Kind, scope: Scope) -> Callable[[Object], bool]:
    """Whether an object is in it."""
    from agent.kinds.shown import labels_of, shown_of

    namespace = scope.namespace if kind.has_namespace else ""
    if not scope.selector:
        return lambda made: not namespace or names_of(made)[0] == namespace
    from agent.kinds.selectors import parse_selector

    has_labels = parse_selector(scope.selector)
    if not shown_of(kind).has_labels:
        raise Refused("selection", f"{kind.plural} have no labels, so -l selects none of them")
    return lambda made: (not namespace or names_of(made)[0] == namespace) and has_labels(labels_of(made))


def facts_test(terms: str) -> Callable[[Object], bool]:
    """Whether what only kepd knows of an object has all of the terms, such as `namespace=shop,objectName=web`."""
    wanted = [term.strip().partition("=") for term in terms.split(",") if term.strip()]
    if wrong := next((name for name, sign, _ in wanted if not sign), ""):
        raise Refused("selection", f'filter term "{wrong}" is not field=value')

    def holds(made: Object) -> bool:
        facts = made.get(FACTS) or made.get("status") or {}
        return all(str(facts.get(name, "")) == value for name, _, value in wanted)

    return holds


def empty_text(kind: Kind, said: str, scope: Scope) -> str:
    """What there is to say where the scope has none of a kind; `said` is of all."""
    if not (scope.namespace or scope.selector):
        return said or f"no {kind.plural}"
    where = f" in namespace {scope.namespace}" if scope.namespace else ""
    return f"no {kind.plural}{where}" + (f" with labels {scope.selector}" if scope.selector else "")


def picked(rows: Sequence[Row], kind: Kind, names: Sequence[str], namespace: str) -> list[Row]:
    """The rows that are named, in that order; all of them without names."""
    if not names:
        return list(rows)
    known = [(Named(row.namespace, row.name, row.short), row) for row in rows]
    found: dict[int, Row] = {}
    for name in names:
        found |= {id(row): row for row in _meant(known, kind, name, namespace)}
    return list(found.values())


def _meant(known: Sequence[tuple[Named, Row]], kind: Kind, name: str, namespace: str) -> Sequence[Row]:
    """By its names, else by the last part of what `-o name` prints, as of an endpoint the address."""
    try:
        one = find_named(kind, name, dict.fromkeys(found for found, _ in known), namespace)
    except Refused as error:
        rows = [row for _, row in known if name in (row.shown.partition("/")[2], row.shown.rpartition("/")[2])]
        if error.kind != "no_object" or not rows:
            raise
        return rows
    return [row for found, row in known if found == one]


def split_name(text: str, namespace: str = "") -> tuple[str, str]:
    """`namespace/name`, or a name in the namespace of `-n`, which may be empty: not said."""
    given, slash, name = text.partition("/")
    if not slash:
        return namespace, text
    if namespace and given != namespace:
        raise Refused("selection", f'"{text}" and -n {namespace} name two namespaces; expected one')
    return given, name


def find_named(kind: Kind, text: str, known: Iterable[Named], namespace: str = "", *, elsewhere: bool = True) -> Named:
    """The one object that a full or short name means.

    A namespace that is not said is `default`; if nothing is called so there, the only one of all others, but not for
    commands that change something (`elsewhere`)."""
    given, name = split_name(text, namespace) if kind.has_namespace else ("", text)
    everything = list(known)
    sought = given or (DEFAULT_NAMESPACE if kind.has_namespace else "")
    there = [one for one in everything if one.namespace == sought or not kind.has_namespace]
    others = [one for one in everything if not given and one not in there]
    for scope in (there, others if elsewhere else []):
        # A full name beats a short one.
        for matches in (
            [one for one in scope if one.name == name],
            [one for one in scope if name in one.short.split()],
        ):
            if len(matches) == 1:
                return matches[0]
            if matches:
                shown = ", ".join(sorted(one.key for one in matches))
                raise Refused("selection", f'"{text}" may mean {shown}; name one of them in full')
    raise Refused("no_object", f'no {kind.singular} "{text}"{_hint(name, there, others)}')


def chosen(kind: Kind, namespace: str, name: str, objects: Sequence[Object]) -> Object:
    """The one of these that is meant."""
    known = [Named(*names_of(made)) for made in objects]
    return objects[known.index(find_named(kind, name, known, namespace))]


def _hint(name: str, there: Sequence[Named], others: Sequence[Named]) -> str:
    found = next((one for one in others if name in (one.name, *one.short.split())), None)
    if found is not None:
        return f"; there is {found.key}: say -n {found.namespace}"
    words = {word: one for one in (*others, *there) for word in (one.name, *one.short.split())}
    close = nearest(name, words)
    return f'; did you mean "{close}"?' if close else ""


def nearest(word: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    return next(iter(get_close_matches(word, list(known), n=1)), "")
