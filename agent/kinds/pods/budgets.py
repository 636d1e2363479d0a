# SPDX-License-Identifier: Apache-2.0
"""PodDisruptionBudgets, in kubectl's columns."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from agent.kinds.ages import age
from agent.kinds.described import Described, entries_of, events_of, joined
from agent.kinds.pods.manifests import ask_for, object_listing
from agent.kinds.pods.parts import created_at, items, part
from agent.kinds.registry import Kind, Named
from agent.kinds.selection import find_named
from agent.kinds.shown import AnyListing, Describing, Shown
from agent.kinds.table import Column, Columns
from agent.model.finding import printable
from agent.wire.kepd.v1 import object_pb2 as pb

Made = dict[str, Any]


def _asked(one: pb.Object, name: str) -> str:
    value = part(json.loads(one.content), "spec").get(name)
    return "N/A" if value is None else str(value)


COLUMNS: Columns[pb.Object] = (
    Column("NAMESPACE", lambda one: one.namespace or "-"),
    Column("NAME", lambda one: one.name),
    Column("MIN AVAILABLE", lambda one: _asked(one, "minAvailable")),
    Column("MAX UNAVAILABLE", lambda one: _asked(one, "maxUnavailable")),
    Column(
        "ALLOWED DISRUPTIONS", lambda one: str(part(json.loads(one.content), "status").get("disruptionsAllowed", 0))
    ),
    Column("AGE", lambda one: age(created_at(json.loads(one.content)))),
)


def _listing(kind: Kind, answers: Sequence[Any]) -> AnyListing:
    return object_listing(kind, answers[0].objects, COLUMNS)


SHOWN = Shown(lambda kind, _how: (ask_for(kind),), _listing)


def describe(kind: Kind, namespace: str, name: str) -> Describing:
    objects = (yield ask_for(kind)).objects
    known = [Named(one.namespace, one.name) for one in objects]
    found = find_named(kind, name, known, namespace)
    made = json.loads(objects[known.index(found)].content)
    return Described(tuple(budget_lines(made)), [events_of(found.namespace, found.name, kind.api)])


def budget_lines(made: Made) -> Iterator[str]:
    spec, status = part(made, "spec"), part(made, "status")
    selector = [joined(part(spec, "selector", "matchLabels"))]
    selector += [
        f"{one.get('key')} {one.get('operator')} {','.join(map(str, one.get('values') or ()))}".strip()
        for one in items(spec, "selector", "matchExpressions")
    ]
    head = (
        ("Name", str(part(made, "metadata").get("name", ""))),
        ("Namespace", str(part(made, "metadata").get("namespace", "default"))),
        ("Min Available", str(spec.get("minAvailable", ""))),
        ("Max Unavailable", str(spec.get("maxUnavailable", ""))),
        ("Selector", "; ".join(filter(None, selector)) or ("all pods" if "selector" in spec else "no pod")),
        ("Unhealthy Pods", str(spec.get("unhealthyPodEvictionPolicy", "IfHealthyBudget"))),
        ("Healthy", f"{status.get('currentHealthy', 0)} of at least {status.get('desiredHealthy', 0)}"),
        ("Expected", str(status.get("expectedPods", 0))),
        ("May End Now", str(status.get("disruptionsAllowed", 0))),
    )
    yield from entries_of("", iter((title, printable(text)) for title, text in head))
