# SPDX-License-Identifier: Apache-2.0
"""The words of docs/reference.md against those in the code, both ways."""

import ast
import re
from collections.abc import Iterator
from functools import cache

import msgspec

from agent.model.kube_objects import ServiceAnnotations
from scripts.sources import modules
from scripts.vocabulary import ANNOTATIONS, EVENTS

TELLERS = {"tell", "_tell", "_warn", "Event", "Sentence", "_sandbox_failed"}
OTHER_WORDS = {"EndpointSlice", "Resize"}
"""Beside reasons, or the beginning of some."""
REASON = re.compile(r"[A-Z][A-Za-z]+[a-z]")


@cache
def trees() -> list[ast.Module]:
    return [ast.parse(path.read_text()) for path in modules()]


@cache
def known_words() -> frozenset[str]:
    return frozenset(word for tree in trees() for word in words(tree))


def words(tree: ast.AST) -> Iterator[str]:
    for step in ast.walk(tree):
        if isinstance(step, ast.Constant) and isinstance(step.value, str):
            yield step.value


def told_reasons() -> set[str]:
    """Reasons that stand where an event is made."""
    calls = [step for tree in trees() for step in ast.walk(tree) if isinstance(step, ast.Call)]
    named = [one for one in calls if getattr(one.func, "attr", getattr(one.func, "id", "")) in TELLERS]
    places = [
        place for one in named for place in (*one.args[:2], *(k.value for k in one.keywords if k.arg == "reason"))
    ]
    return {word for place in places for word in words(place) if REASON.fullmatch(word)}


def test_every_reason_of_an_event_is_explained() -> None:
    assert told_reasons() - set(EVENTS) - OTHER_WORDS == set()


def test_no_reason_is_explained_that_nobody_tells() -> None:
    made = {f"Resize{word}" for word in ("Deferred", "Infeasible") if word in known_words()}

    assert set(EVENTS) - known_words() - made == set()


def annotation_keys() -> set[str]:
    """Names behind the prefix, from the structs that read objects and from the readers of pods."""
    fields = [field.encode_name for field in msgspec.structs.fields(ServiceAnnotations)]
    whole = {word for word in known_words() if word.startswith("kepd.dev/")}
    return {name.removeprefix("kepd.dev/") for name in (*fields, *whole) if re.fullmatch(r"kepd\.dev/[a-z-]+", name)}


def test_every_annotation_is_explained() -> None:
    explained = {name.removesuffix(".NAME") for name, *_ in ANNOTATIONS}

    assert annotation_keys() - explained == set()


def test_no_annotation_is_explained_that_nobody_reads() -> None:
    explained = {name.removesuffix(".NAME") for name, *_ in ANNOTATIONS}

    assert {name for name in explained if not {name, f"kepd.dev/{name}"} & known_words()} == set()
