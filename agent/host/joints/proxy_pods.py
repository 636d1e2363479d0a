# SPDX-License-Identifier: Apache-2.0
"""The order in which containers end, as the pods plane has it: a pod ends alike under a kubelet and without one."""

from collections.abc import Mapping, Sequence

from agent.model.pods.pod import ContainerKind
from agent.pods.plan.order import Member, waits_for_end


def stop_order(sidecars: Sequence[str], mains: Sequence[str]) -> Mapping[str, frozenset[str]]:
    members = [Member(name=name, kind=ContainerKind.SIDECAR) for name in sidecars]
    members += [Member(name=name, kind=ContainerKind.MAIN) for name in mains]
    return waits_for_end(members)
