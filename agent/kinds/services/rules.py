# SPDX-License-Identifier: Apache-2.0
"""What is in the kernel for Services."""

from agent.kinds.shown import AnyListing, shown_by
from agent.kinds.table import Column, Columns, Listing
from agent.wire.kepd.v1 import service_proxy_pb2 as pb

LIST_RULES = "kepd.v1.ServiceProxyService/ListRules"
COLUMNS: Columns[pb.Rule] = (
    Column("FAMILY", lambda one: one.family),
    Column("MAP", lambda one: one.map),
    Column("KEY", lambda one: one.key),
    Column("LEADS TO", lambda one: one.data),
    Column("SERVICE", lambda one: one.service),
)


def rule_listing(answer: pb.ListRulesResponse) -> AnyListing:
    return Listing("Rule", answer.rules, COLUMNS, lambda one: f"rule/{one.map}/{one.key}", "no rules")


SHOWN = shown_by(LIST_RULES, pb.ListRulesRequest(), pb.ListRulesResponse, rule_listing)
