# SPDX-License-Identifier: Apache-2.0
"""NetworkPolicies, in kubectl's columns; described with the pods that they mean now."""

from collections.abc import Iterator, Mapping
from typing import Any

from agent.kinds.described import Described, entries_of, events_of, joined, moment
from agent.kinds.pods.manifests import AGE, NAMES, SOURCE, found_object, read_made, shown_objects
from agent.kinds.pods.parts import created_at, items, part
from agent.kinds.registry import Kind
from agent.kinds.shown import Ask, Describing
from agent.kinds.table import Column, Columns
from agent.model.finding import printable
from agent.wire.kepd.v1 import object_pb2 as pb
from agent.wire.kepd.v1 import policy_pb2

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


COLUMNS: Columns[pb.Object] = (
    *NAMES,
    Column("POD-SELECTOR", lambda one: pod_selector(read_made(one))),
    AGE,
    SOURCE,
)


SHOWN = shown_objects(COLUMNS)


def ask_to_explain(namespace: str, name: str) -> Ask:
    request = policy_pb2.ExplainPolicyRequest(namespace=namespace, name=name)
    return Ask(f"{SERVICE}/ExplainPolicy", request, policy_pb2.ExplainPolicyResponse, may_fail=True)


def describe(kind: Kind, namespace: str, name: str) -> Describing:
    found = yield from found_object(kind, namespace, name)
    explained = yield ask_to_explain(found.namespace, found.name)
    lines = explained.lines if explained else ("not in force: the plane has no such policy",)
    return Described(
        (*entries_of("", _head(found)), "In words:", *(f"  {printable(line)}" for line in lines)),
        [events_of(found.namespace, found.name, kind.api)],
    )


def _head(one: pb.Object) -> Iterator[tuple[str, str]]:
    made = read_made(one)
    yield "Name", one.name
    yield "Namespace", one.namespace
    yield "Created", moment(created_at(made))
    yield "Labels", printable(joined(part(made, "metadata", "labels")))
    yield "PodSelector", pod_selector(made)
    yield "Policy Types", ", ".join(map(str, part(made, "spec").get("policyTypes") or ()))
    yield "Source", one.source
