# SPDX-License-Identifier: Apache-2.0
"""The policies plane put together on the drivers of this node."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from agent.config.document import Configuration
from agent.drivers.conntrack.driver import Conntrack
from agent.drivers.interfaces.driver import Interfaces
from agent.drivers.nft.named_table import NamedTable
from agent.drivers.nft.watch import OwnSockets
from agent.kit.plane import Attached, PlaneInputs, PlaneUnit
from agent.kit.plane_lock import PlaneTaken, held_plane_lock
from agent.model.services.nft_table import TableFamily
from agent.policies.attach.policy_service import PolicyService
from agent.policies.manifest.reading import POLICY_READING, why_off
from agent.policies.ports import PodsHere, TableTaken
from agent.policies.rules import bridge_text, nft_text
from agent.policies.rules.table import GUARD, TABLE
from agent.policies.run.bridges import Bridges
from agent.policies.run.flow_ender import FlowEnder
from agent.policies.run.metrics import PolicyMetrics
from agent.policies.run.plane import PolicyPlane

FAMILIES: tuple[TableFamily, ...] = ("inet", "bridge")
REMOVALS = {"inet": nft_text.REMOVAL, "bridge": bridge_text.REMOVAL}


class PolicyOffers(msgspec.Struct, frozen=True):
    plane: PolicyPlane


@contextmanager
def held_table(run_directory: str) -> Iterator[None]:
    """One kepd in a network namespace has it."""
    scope = f"network namespace {os.stat('/proc/self/ns/net').st_ino}"  # noqa: PTH116
    try:
        with held_plane_lock("policies", scope, run_directory):
            yield
    except PlaneTaken as error:
        raise TableTaken(str(error)) from error


def attach(inputs: PlaneInputs, pods: PodsHere | None) -> Attached[PolicyOffers]:
    """`pods` are those of this node, where a plane runs them."""
    configuration = inputs.configuration()
    own = OwnSockets()
    table, bridge = (NamedTable(family, TABLE, own_sockets=own) for family in FAMILIES)
    metrics, flows, addresses = PolicyMetrics(), Conntrack(), Interfaces()
    plane = PolicyPlane(
        table=table,
        bridge_table=bridge,
        pods=pods,
        manifests=inputs.find_manifests(lambda: POLICY_READING),
        ender=FlowEnder(flows, addresses.now, metrics),
        bridges=Bridges(),
        clock=inputs.clock,
        tell=inputs.tell,
        metrics=metrics,
        claim=lambda: held_table(configuration.node.run_directory),
        off=why_off(configuration),
    )

    async def close() -> None:
        table.close()
        bridge.close()
        await flows.close()

    return Attached(
        offers=PolicyOffers(plane),
        service=PolicyService(plane, addresses.now),
        # Where nothing is enforced it only tells whose policies have no effect.
        units=(PlaneUnit("policies", plane.run, is_plane=not plane.off),),
        families=(metrics.families,),
        advice=(plane.advice,),
        close=close,
    )


async def remove_policies(configuration: Configuration, *, is_dry: bool) -> list[str]:
    """What `kepd cleanup` takes away. Raises NftFailed, PlaneTaken."""
    tables = [NamedTable(family, TABLE) for family in FAMILIES]
    try:
        there = [one for one in tables if await one.exists(GUARD)]
        if not there:
            return []
        scope = f"network namespace {os.stat('/proc/self/ns/net').st_ino}"  # noqa: PTH116
        with held_plane_lock("policies", scope, configuration.node.run_directory):
            for one in () if is_dry else there:
                await one.load(REMOVALS[one.family])
        return [f"nftables: table {TABLE} of {one.family}" for one in there]
    finally:
        for one in tables:
            one.close()
