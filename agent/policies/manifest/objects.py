# SPDX-License-Identifier: Apache-2.0
"""A NetworkPolicy as manifests write it, and the pods that it speaks of."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from agent.model.pods.container_fields import Fields
from agent.model.pods.fields import Metadata, Texts
from agent.model.selector import LabelSelector, Requirement

API_VERSION = "networking.k8s.io/v1"
KIND = "NetworkPolicy"
NAMESPACE_LABEL = "kubernetes.io/metadata.name"
Direction = Literal["egress", "ingress"]
DIRECTIONS: tuple[Direction, ...] = ("egress", "ingress")


class SelectorFields(Fields, frozen=True):
    match_labels: Texts = msgspec.field(default_factory=dict)
    match_expressions: tuple[Requirement, ...] = ()

    @property
    def selector(self) -> LabelSelector:
        return LabelSelector(self.match_labels, self.match_expressions)


class IpBlock(Fields, frozen=True):
    cidr: str = ""
    except_: tuple[str, ...] = msgspec.field(default=(), name="except")


class Peer(Fields, frozen=True):
    pod_selector: SelectorFields | None = None
    namespace_selector: SelectorFields | None = None
    ip_block: IpBlock | None = None


class PortFields(Fields, frozen=True):
    protocol: str = "TCP"
    port: int | str | None = None
    end_port: int | None = None


class IngressRule(Fields, frozen=True):
    from_: tuple[Peer, ...] = msgspec.field(default=(), name="from")
    ports: tuple[PortFields, ...] = ()

    @property
    def peers(self) -> tuple[Peer, ...]:
        return self.from_


class EgressRule(Fields, frozen=True):
    to: tuple[Peer, ...] = ()
    ports: tuple[PortFields, ...] = ()

    @property
    def peers(self) -> tuple[Peer, ...]:
        return self.to


class PolicySpec(Fields, frozen=True):
    pod_selector: SelectorFields = SelectorFields()
    ingress: tuple[IngressRule, ...] = ()
    egress: tuple[EgressRule, ...] = ()
    policy_types: tuple[str, ...] = ()


class Policy(Fields, frozen=True):
    """One without a fault; `source` is its place."""

    api_version: str = ""
    kind: str = ""
    metadata: Metadata = Metadata()
    spec: PolicySpec = PolicySpec()
    status: object = None

    @property
    def namespace(self) -> str:
        return self.metadata.namespace

    @property
    def key(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    def limits(self, direction: Direction) -> bool:
        """Where it names no types, ingress always, and egress if it has a rule for that."""
        types = self.spec.policy_types or (("Ingress", "Egress") if self.spec.egress else ("Ingress",))
        return direction.capitalize() in types

    def rules(self, direction: Direction) -> Sequence[IngressRule | EgressRule]:
        return self.spec.ingress if direction == "ingress" else self.spec.egress


class PolicedPod(msgspec.Struct, frozen=True):
    """A pod of this node as policies see it. `addresses` None: it has a sandbox, and nobody has asked it for them yet.
    `labels` None: nothing is left that tells them. `ports`: name, protocol and number of its containers'. `links`: what
    leads to it of the ports of a bridge, as far as that is known."""

    uid: str
    namespace: str
    name: str
    labels: tuple[tuple[str, str], ...] | None = ()
    addresses: tuple[str, ...] | None = ()
    is_host_network: bool = False
    ports: tuple[tuple[str, str, int], ...] = ()
    links: tuple[str, ...] = ()
    namespace_labels: tuple[tuple[str, str], ...] = ()
    """Beside that of its name, which each namespace has."""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"
