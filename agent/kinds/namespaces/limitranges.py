# SPDX-License-Identifier: Apache-2.0
"""LimitRanges: what containers of a namespace have and may have."""

from agent.kinds.kind import BY_PODS, Kind
from agent.kinds.written import AGE, NAMES, SOURCE, shown_objects

KIND = Kind("limitranges", "limitrange", ("limits",), "LimitRange", read_by=BY_PODS)
SHOWN = shown_objects((*NAMES, AGE, SOURCE))
