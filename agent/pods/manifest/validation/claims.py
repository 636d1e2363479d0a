# SPDX-License-Identifier: Apache-2.0
"""Devices that a pod claims: spec.resourceClaims, and what containers take of them."""

from collections.abc import Iterator, Mapping, Sequence

from agent.model.pods.container_fields import ClaimUse, Container
from agent.model.pods.fields import PodClaim, PodFields
from agent.pods.manifest.validation.complaint import Complaint, Complaints

PATH = "spec.resourceClaims"
MOST_CLAIMS = 64
RESERVED = ("cdi.k8s.io/", "kepd.dev/devices.")
OLD_FORM = "is the form of v1alpha versions; expected resourceClaimName or resourceClaimTemplateName beside the name"


def check_claims(out: Complaints, spec: PodFields) -> None:
    if len(spec.resource_claims) > MOST_CLAIMS:
        out.too_many(PATH, len(spec.resource_claims), MOST_CLAIMS)
        return
    names: set[str] = set()
    for index, one in enumerate(spec.resource_claims):
        place = f"{PATH}[{index}]"
        out.label(f"{place}.name", one.name)
        if one.name in names:
            out.duplicate(f"{place}.name", one.name)
        names.add(one.name)
        _check_origin(out, one, place)
    for path, container in containers_of(spec):
        _check_uses(out, container.resources.claims, f"{path}.resources.claims", names)
    if spec.resources.claims:
        out.forbidden("spec.resources.claims", "only containers take devices of claims")


def _check_origin(out: Complaints, one: PodClaim, place: str) -> None:
    if one.source is not None:
        out.forbidden(f"{place}.source", OLD_FORM)
        return
    given = [name for name in (one.resource_claim_name, one.resource_claim_template_name) if name]
    if not given:
        out.required(place, "must have resourceClaimName or resourceClaimTemplateName")
    elif len(given) > 1:
        out.invalid(place, one.name, "must have only one of resourceClaimName and resourceClaimTemplateName")
    for field, name in (
        ("resourceClaimName", one.resource_claim_name),
        ("resourceClaimTemplateName", one.resource_claim_template_name),
    ):
        if name:
            out.subdomain(f"{place}.{field}", name)


def _check_uses(out: Complaints, uses: Sequence[ClaimUse], path: str, names: set[str]) -> None:
    known: set[tuple[str, str]] = set()
    for index, one in enumerate(uses):
        place = f"{path}[{index}]"
        if not one.name:
            out.required(f"{place}.name", "must name one of spec.resourceClaims")
        elif one.name not in names:
            out.missing(f"{place}.name", one.name)
        if one.request:
            out.label(f"{place}.request", one.request)
        if (one.name, one.request) in known or (one.request and (one.name, "") in known):
            out.duplicate(place, f"{one.name}/{one.request}" if one.request else one.name)
        known.add((one.name, one.request))


def containers_of(spec: PodFields) -> Iterator[tuple[str, Container]]:
    for field, listed in (("initContainers", spec.init_containers), ("containers", spec.containers)):
        for index, one in enumerate(listed):
            yield f"spec.{field}[{index}]", one


def check_reserved(annotations: Mapping[str, str], out: Complaints) -> None:
    """Devices come by claims alone: a manifest cannot name them to the runtime."""
    for name in annotations:
        if name.startswith(RESERVED):
            out.forbidden(f"metadata.annotations[{name}]", "devices are given by claims; kepd alone writes this")


def where_claimed(spec: PodFields, *, gives_devices: bool = False, gives_plugins: bool = False) -> Iterator[Complaint]:
    """What this node does not give: devices of claims, or of plugins."""
    paths = [PATH] if spec.resource_claims else []
    paths += [f"{path}.resources.claims" for path, one in containers_of(spec) if one.resources.claims]
    for path in () if gives_devices else paths:
        yield Complaint(path, "Forbidden: needs devices.manager.enabled: true; this node gives no devices")
    for path, one in () if gives_plugins else containers_of(spec):
        for part, amounts in (("limits", one.resources.limits), ("requests", one.resources.requests)):
            for name in amounts:
                if "/" in name:
                    text = "Forbidden: needs a device plugin, and devices.plugins.enabled: true, to register here"
                    yield Complaint(f"{path}.resources.{part}.{name}", text)
