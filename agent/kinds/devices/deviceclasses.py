# SPDX-License-Identifier: Apache-2.0
"""Classes that claims ask for."""

from agent.kinds.kind import BY_DEVICES, Kind
from agent.kinds.written import COLUMNS, shown_objects

KIND = Kind(
    "deviceclasses", "deviceclass", (), "DeviceClass", has_namespace=False, group="resource.k8s.io", read_by=BY_DEVICES
)
SHOWN = shown_objects(COLUMNS)
