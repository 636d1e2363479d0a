# SPDX-License-Identifier: Apache-2.0
"""NetworkPolicies, in kubectl's columns; described with the pods that they mean now."""

from collections.abc import Iterator, Mapping
from typing import Any

from agent.kinds.described import Described, entries_of, events_of_object, joined, moment
from agent.kinds.kind import Kind
from agent.kinds.parts import created, items, part
from agent.kinds.shown import Ask, Describing
from agent.kinds.table import FACTS, Column, Columns, Object, names_of
from agent.kinds.written import AGE, NAMES, SOURCE, found_object, shown_objects
from agent.model.finding import printable

KIND = Kind(
    "networkpolicies",
    "networkpolicy",
    ("netpol", "policy"),
    "NetworkPolicy",
    group="networking.k8s.io",
    read_by="agent.policies.manifest.reading",
)

SERVICE = "kepd.v1.PolicyService"
Made = Mapping[str, Any]


def pod_selector(made: Made) -> str:
    """As `kubectl get` writes it."""
    selector = part(made, "spec", "podSelector")
    words = [f"{key}={value}" for key, value in sorted(part(selector, "matchLabels").items())]
    for one in items(selector, "matchExpressions"):
        key, values = one.get("key"), ",".join(map(str, one.get("values") or ()))
        match one.get("operator"):
            case "In" | "NotIn" as operator:
                words.append(f"{key} {operator.lower()} ({values})")
            case "DoesNotExist":
                words.append(f"!{key}")
            case _:
                words.append(str(key))
    return printable(",".join(words)) or "<none>"


COLUMNS: Columns[Object] = (
    *NAMES,
    Column("POD-SELECTOR", pod_selector),
    AGE,
    SOURCE,
)


SHOWN = shown_objects(COLUMNS)


def ask_to_explain(namespace: str, name: str) -> Ask:
    from agent.wire.kepd.v1 import policy_pb2

    request = policy_pb2.ExplainPolicyRequest(namespace=namespace, name=name)
    return Ask(f"{SERVICE}/ExplainPolicy", request, policy_pb2.ExplainPolicyResponse, may_fail=True)


def describe(kind: Kind, namespace: str, name: str) -> Describing:
    found = yield from found_object(kind, namespace, name)
    explained = yield ask_to_explain(*names_of(found))
    lines = explained.lines if explained else ("not in force: the plane has no such policy",)
    return Described(
        (*entries_of("", _head(found)), "In words:", *(f"  {printable(line)}" for line in lines)),
        [events_of_object(found, kind.api)],
    )


def _head(made: Object) -> Iterator[tuple[str, str]]:
    namespace, name = names_of(made)
    yield "Name", name
    yield "Namespace", namespace
    yield "Created", moment(created(made))
    yield "Labels", printable(joined(part(made, "metadata", "labels")))
    yield "PodSelector", pod_selector(made)
    yield "Policy Types", ", ".join(map(str, part(made, "spec").get("policyTypes") or ()))
    yield "Source", str(part(made, FACTS).get("source", ""))
