# SPDX-License-Identifier: Apache-2.0
"""IngressClasses: which program carries out which Ingresses."""

from agent.kinds.kind import Kind, no_faults
from agent.kinds.parts import part
from agent.kinds.table import Column
from agent.kinds.written import AGE, SOURCE, shown_objects

KIND = Kind(
    "ingressclasses",
    "ingressclass",
    (),
    "IngressClass",
    has_namespace=False,
    group="networking.k8s.io",
    faults=no_faults,
)  # fmt: skip
SHOWN = shown_objects((
    Column("NAME", lambda made: made["metadata"]["name"]),
    Column("CONTROLLER", lambda made: str(part(made, "spec").get("controller") or "")),
    AGE,
    SOURCE,
))  # fmt: skip
