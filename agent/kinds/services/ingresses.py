# SPDX-License-Identifier: Apache-2.0
"""Ingresses: kept and shown for a program that carries them out, which runs in a pod and asks the door for them."""

from agent.kinds.kind import Kind, no_faults, status_of
from agent.kinds.parts import items, part
from agent.kinds.table import Column, Object
from agent.kinds.written import AGE, NAMES, SOURCE, shown_objects


def _hosts(made: Object) -> str:
    return ",".join(str(rule.get("host") or "*") for rule in items(made, "spec", "rules")) or "*"


KIND = Kind(
    "ingresses",
    "ingress",
    ("ing",),
    "Ingress",
    group="networking.k8s.io",
    faults=no_faults,
    subresources=(status_of("Ingress"),),
)
SHOWN = shown_objects((
    *NAMES,
    Column("CLASS", lambda made: str(part(made, "spec").get("ingressClassName") or "<none>")),
    Column("HOSTS", _hosts),
    AGE,
    SOURCE,
))  # fmt: skip
