# SPDX-License-Identifier: Apache-2.0
"""ConfigMaps."""

from agent.kinds.kind import BY_PODS, Kind
from agent.kinds.written import COLUMNS, shown_objects

KIND = Kind("configmaps", "configmap", ("cm",), "ConfigMap", read_by=BY_PODS)
SHOWN = shown_objects(COLUMNS)
