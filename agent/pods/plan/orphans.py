# SPDX-License-Identifier: Apache-2.0
"""Pods and containers of which no manifest and no record is left, read back from the runtime's annotations."""

from contextlib import suppress

import msgspec
from msgspec.structs import replace

from agent.model.pods.container_fields import Container, Hook, Lifecycle
from agent.model.pods.fields import PodFields
from agent.model.pods.pod import ContainerKind, ContainerSpec, PodSpec
from agent.pods.runtime.names import EPHEMERAL, GRACE, PRE_STOP
from agent.pods.runtime.observed import Instance, SeenPod


def orphan_spec(seen: SeenPod) -> PodSpec:
    """Enough to end it with its grace and its hooks. All but ephemeral containers count as mains, for lack of better
    knowledge."""
    sandbox = seen.sandboxes[0]
    by_name: dict[str, Instance] = {}
    for one in seen.instances:
        if not one.is_ephemeral:
            by_name.setdefault(one.name, one)
    graces = [int(text) for one in by_name.values() if (text := one.notes.get(GRACE, "")).isdecimal()]
    spec = PodFields(
        containers=tuple(orphan_container(one) for one in by_name.values()),
        restart_policy="Never",
        termination_grace_period_seconds=max(graces, default=PodFields().termination_grace_period_seconds),
        host_network=sandbox.is_host_network,
    )
    return PodSpec(
        namespace=sandbox.namespace, name=sandbox.name, uid=sandbox.uid, hash=sandbox.hash, spec=spec, file=sandbox.file
    )


def orphan_container(one: Instance) -> Container:
    lifecycle = None
    if one.notes.get(PRE_STOP):
        with suppress(msgspec.MsgspecError):
            lifecycle = Lifecycle(pre_stop=msgspec.json.decode(one.notes[PRE_STOP], type=Hook))
    return Container(name=one.name, image=one.image, lifecycle=lifecycle)


def left_container(one: Instance) -> ContainerSpec:
    """What the manifest does not have, as it tells of itself: an ephemeral one, or one that counts as a main."""
    if not one.is_ephemeral:
        return ContainerSpec(ContainerKind.MAIN, orphan_container(one))
    fields = Container()
    with suppress(msgspec.MsgspecError):
        fields = msgspec.json.decode(one.notes[EPHEMERAL], type=Container)
    return ContainerSpec(ContainerKind.EPHEMERAL, replace(fields, name=one.name, image=one.image))
