# SPDX-License-Identifier: Apache-2.0
"""Policies come into force, are refused by the kernel once, and refuse packets and a flow."""

import asyncio

from agent.model.pods.unprotected import PodUnprotected
from agent.model.services.flow import Flow
from tests.lives.figures import Watched
from tests.policies.fake_table import FakeTable
from tests.policies.running import GivenFlows, GivenManifests, GivenPods, running
from tests.policies.test_plane import pod, policy


async def policies_life() -> set[str]:
    """What moved."""
    web = bytes([10, 0, 0, 16])
    flows = GivenFlows(Flow("IPv4", "UDP", bytes([10, 0, 0, 17]), 40000, web, 53, web, 53))
    table = FakeTable()
    table.fails = 1
    async with running(GivenManifests(policy()), GivenPods(pod("a", "10.0.0.16")), table=table, flows=flows) as node:
        watched = Watched(node.metrics.families)
        for _ in range(2):
            try:
                await node.plane.hold("uid-a")
            except PodUnprotected:
                watched.look()
        await asyncio.wait_for(flows.deleted.get(), 20)
        table.counters = {"denied_ingress": 3}
        await node.plane.count()
        watched.look()
        return watched.moved
