# SPDX-License-Identifier: Apache-2.0
"""Leases: who of several programs leads, as they write it themselves."""

from agent.kinds.kind import Kind, no_faults
from agent.kinds.parts import part
from agent.kinds.table import Column
from agent.kinds.written import AGE, NAMES, SOURCE, shown_objects

KIND = Kind("leases", "lease", (), "Lease", group="coordination.k8s.io", faults=no_faults)
SHOWN = shown_objects((
    *NAMES, Column("HOLDER", lambda made: str(part(made, "spec").get("holderIdentity") or "")), AGE, SOURCE,
))  # fmt: skip
