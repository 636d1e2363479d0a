# SPDX-License-Identifier: Apache-2.0
"""IPAddresses: which object has which address, as programs note it. What Services here have is in the Services."""

from agent.kinds.kind import Kind, no_faults
from agent.kinds.parts import part
from agent.kinds.table import Column, Object
from agent.kinds.written import AGE, SOURCE, shown_objects

KIND = Kind(
    "ipaddresses",
    "ipaddress",
    (),
    "IPAddress",
    has_namespace=False,
    group="networking.k8s.io",
    faults=no_faults,
)


def _parent(made: Object) -> str:
    of = part(made, "spec", "parentRef")
    return "/".join(str(of[name]) for name in ("resource", "namespace", "name") if of.get(name))


SHOWN = shown_objects(
    (Column("NAME", lambda made: made["metadata"]["name"]), Column("PARENTREF", _parent), AGE, SOURCE)
)
