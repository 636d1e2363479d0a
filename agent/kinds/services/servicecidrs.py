# SPDX-License-Identifier: Apache-2.0
"""Networks that Services have their addresses from."""

from agent.kinds.kind import BY_SERVICES, Kind, status_of
from agent.kinds.written import COLUMNS, shown_objects

KIND = Kind(
    "servicecidrs",
    "servicecidr",
    (),
    "ServiceCIDR",
    has_namespace=False,
    group="networking.k8s.io",
    read_by=BY_SERVICES,
    subresources=(status_of("ServiceCIDR"),),
)  # fmt: skip
SHOWN = shown_objects(COLUMNS)
