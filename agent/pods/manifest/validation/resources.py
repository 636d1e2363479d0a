# SPDX-License-Identifier: Apache-2.0
"""Requests and limits, of a container and of a pod as a whole."""

import re
from collections.abc import Mapping

from agent.model.pods.container_fields import Resources
from agent.model.pods.fields import PodFields
from agent.model.quantity import QuantityError, parse_quantity
from agent.pods.manifest.validation.complaint import Complaints

HUGE_PAGES = "hugepages-"
STANDARD = frozenset({"cpu", "memory", "ephemeral-storage"})
OF_PODS = frozenset({"cpu", "memory"})
EXTENDED = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?\Z")
NANOS = 10**9


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
