# SPDX-License-Identifier: Apache-2.0
"""Secrets; their values are for those who may read the files."""

from agent.kinds.kind import BY_PODS, Kind
from agent.kinds.written import COLUMNS, shown_objects

KIND = Kind("secrets", "secret", (), "Secret", read_by=BY_PODS)
SHOWN = shown_objects(COLUMNS)
