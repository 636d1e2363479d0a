# SPDX-License-Identifier: Apache-2.0
"""Requests, limits and devices, of a container and of a pod as a whole."""

import re
from collections.abc import Iterator, Mapping, Sequence

from agent.model.pods.container_fields import ClaimUse, Container, Resources
from agent.model.pods.fields import PodClaim, PodFields
from agent.model.quantity import QuantityError, parse_quantity
from agent.pods.manifest.validation.complaint import Complaint, Complaints

HUGE_PAGES = "hugepages-"
STANDARD = frozenset({"cpu", "memory", "ephemeral-storage"})
OF_PODS = frozenset({"cpu", "memory"})
EXTENDED = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?\Z")
NANOS = 10**9
PATH = "spec.resourceClaims"
MOST_CLAIMS = 64
RESERVED = ("cdi.k8s.io/", "kepd.dev/devices.")
OLD_FORM = "is the form of v1alpha versions; expected resourceClaimName or resourceClaimTemplateName beside the name"


def check_resources(out: Complaints, resources: Resources, path: str, *, is_pod: bool = False) -> None:
    limits = _parsed(out, resources.limits, f"{path}.limits", is_pod=is_pod)
    requests = _parsed(out, resources.requests, f"{path}.requests", is_pod=is_pod)
    for name, amount in requests.items():
        limit = limits.get(name)
        is_huge = name.startswith(HUGE_PAGES) or "/" in name
        if limit is not None and (amount != limit if is_huge else amount > limit):
            word = "equal to" if is_huge else "less than or equal to"
            detail = f"must be {word} {name} limit of {resources.limits[name]}"
            out.invalid(f"{path}.requests", str(resources.requests[name]), detail)
        elif limit is None and is_huge and name not in resources.limits:
            out.required(f"{path}.limits", f"{name} needs a limit, which is its request as well")
    named = {*limits, *requests}
    if any(name.startswith(HUGE_PAGES) for name in named) and not named & OF_PODS:
        out.forbidden(path, "huge pages require cpu or memory")


def check_whole(out: Complaints, spec: PodFields) -> None:
    """What a pod has as a whole against what its containers have (KEP-2837), and what its runtime class takes."""
    for name in sorted(OF_PODS):
        whole, limit = (_nanos(given, name) for given in (spec.resources.requests, spec.resources.limits))
        asked = sum(
            _nanos(one.resources.requests, name) or _nanos(one.resources.limits, name)
            for one in (*spec.containers, *(one for one in spec.init_containers if one.is_sidecar))
        )
        if name in spec.resources.requests and asked > whole:
            together = f"{asked // 10**6}m" if name == "cpu" else str(asked // NANOS)
            detail = f"must be greater than or equal to what its containers request together, {together}"
            out.invalid(f"spec.resources.requests.{name}", str(spec.resources.requests[name]), detail)
        if name in spec.resources.limits:
            _check_single(out, spec, name, limit)
    _parsed(out, spec.overhead, "spec.overhead", is_pod=True)


def _check_single(out: Complaints, spec: PodFields, name: str, limit: int) -> None:
    for field, listed in (("initContainers", spec.init_containers), ("containers", spec.containers)):
        for index, one in enumerate(listed):
            if _nanos(one.resources.limits, name) > limit:
                detail = f"must be less than or equal to the limit of the pod, {spec.resources.limits[name]}"
                out.invalid(f"spec.{field}[{index}].resources.limits.{name}", str(one.resources.limits[name]), detail)


def _nanos(given: Mapping[str, object], name: str) -> int:
    try:
        return parse_quantity(str(given.get(name, 0))).nanos
    except QuantityError:
        return 0


def _parsed(out: Complaints, given: Mapping[str, object], path: str, *, is_pod: bool) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, amount in given.items():
        place = f"{path}.{name}"
        try:
            found[name] = parse_quantity(str(amount)).nanos
        except QuantityError:
            out.invalid(place, str(amount), "must be a quantity such as 500m, 1.5 or 64Mi")
            continue
        if found[name] < 0:
            out.invalid(place, str(amount), "must be greater than or equal to 0")
        if name.startswith(HUGE_PAGES):
            _check_pages(out, name, found[name], str(amount), place)
        else:
            _check_name(out, name, path, str(amount), found[name], is_pod=is_pod)
    return found


def _check_name(out: Complaints, name: str, path: str, amount: str, nanos: int, *, is_pod: bool) -> None:
    if is_pod:
        if name not in OF_PODS:
            out.one_of(path, name, (*sorted(OF_PODS), "hugepages-SIZE"))
    elif EXTENDED.match(name):
        if nanos % NANOS:
            out.invalid(f"{path}.{name}", amount, "must be an integer: devices are given whole")
    elif name not in STANDARD:
        out.invalid(path, name, "must be a standard resource for containers, such as cpu, memory, ephemeral-storage")


def _check_pages(out: Complaints, name: str, nanos: int, amount: str, place: str) -> None:
    try:
        page = parse_quantity(name.removeprefix(HUGE_PAGES)).nanos
    except QuantityError:
        page = 0
    if page < NANOS:
        out.invalid(place, name, "must name a size of pages, such as hugepages-2Mi")
    elif nanos % page:
        out.invalid(place, amount, f"must be a multiple of the size of a page, {name.removeprefix(HUGE_PAGES)}")


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
