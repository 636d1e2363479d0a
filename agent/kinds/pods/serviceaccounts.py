# SPDX-License-Identifier: Apache-2.0
"""ServiceAccounts: names that pods have. Each namespace has one that is called `default`."""

from agent.kinds.kind import Kind, no_faults
from agent.kinds.parts import items
from agent.kinds.table import Column
from agent.kinds.written import AGE, NAMES, SOURCE, shown_objects

KIND = Kind("serviceaccounts", "serviceaccount", ("sa",), "ServiceAccount", faults=no_faults)
SHOWN = shown_objects((*NAMES, Column("SECRETS", lambda made: str(len(items(made, "secrets")))), AGE, SOURCE))
