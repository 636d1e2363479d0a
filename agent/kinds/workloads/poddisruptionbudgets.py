# SPDX-License-Identifier: Apache-2.0
"""PodDisruptionBudgets, in kubectl's columns."""

from collections.abc import Iterator

from agent.kinds.described import Described, entries_of, events_of_object, joined
from agent.kinds.kind import BY_PODS, Kind, status_of
from agent.kinds.parts import items, part
from agent.kinds.shown import Describing
from agent.kinds.table import Column, Columns, Object
from agent.kinds.written import AGE, NAMES, Made, found_object, shown_objects
from agent.model.finding import printable

KIND = Kind(
    "poddisruptionbudgets",
    "poddisruptionbudget",
    ("pdb",),
    "PodDisruptionBudget",
    group="policy",
    read_by=BY_PODS,
    is_carried_out=True,
    subresources=(status_of("PodDisruptionBudget"),),
)


def _asked(one: Object, name: str) -> str:
    value = part(one, "spec").get(name)
    return "N/A" if value is None else str(value)


COLUMNS: Columns[Object] = (
    *NAMES,
    Column("MIN AVAILABLE", lambda one: _asked(one, "minAvailable")),
    Column("MAX UNAVAILABLE", lambda one: _asked(one, "maxUnavailable")),
    Column("ALLOWED DISRUPTIONS", lambda one: str(part(one, "status").get("disruptionsAllowed", 0))),
    AGE,
)


SHOWN = shown_objects(COLUMNS)


def describe(kind: Kind, namespace: str, name: str) -> Describing:
    found = yield from found_object(kind, namespace, name)
    return Described(tuple(budget_lines(found)), [events_of_object(found, kind.api)])


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
