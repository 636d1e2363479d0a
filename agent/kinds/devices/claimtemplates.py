# SPDX-License-Identifier: Apache-2.0
"""What claims of pods are made from."""

from agent.kinds.kind import BY_DEVICES, Kind
from agent.kinds.written import COLUMNS, shown_objects

KIND = Kind(
    "claimtemplates",
    "claimtemplate",
    ("resourceclaimtemplates",),
    "ResourceClaimTemplate",
    group="resource.k8s.io",
    read_by=BY_DEVICES,
)
SHOWN = shown_objects(COLUMNS)
