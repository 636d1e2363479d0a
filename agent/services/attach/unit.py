# SPDX-License-Identifier: Apache-2.0
"""The services plane attached: its units, its pages, what `kepctl doctor` says of Services."""

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial

from msgspec.structs import replace

from agent.api.http import Handler, HttpServer, Page
from agent.config.document import Configuration
from agent.config.reference import as_document
from agent.kit.plane import Attached, PlaneInputs, PlaneUnit, asks_for
from agent.model.finding import Advice
from agent.model.services.report import ServiceReport
from agent.services.attach.assembly import ServiceParts, ServiceUnit, wire_services
from agent.services.attach.files import NoPods, PodsHere
from agent.services.attach.manifests import SERVICE_READING
from agent.services.attach.outage import outage_settings
from agent.services.attach.service_proxy_service import ServiceProxyService
from agent.services.ports import LocalEnds
from agent.services.run.view import ServicesView

MOST_NAMED = 50
SHOWN = ("apiVersion", "kind", "node", "kubernetes", "services", "telemetry")
"""In `/configz`: what concerns Services and never other planes' parts, for anybody on this node may ask."""
COMPATIBLE_METRICS = "127.0.0.1:10249"


def attach(inputs: PlaneInputs, pods: PodsHere | None, *, has_runtime: bool = False) -> Attached[ServiceUnit]:
    """`pods` are those of this node, where a plane runs them. `has_runtime`: this process follows one anyway."""
    configuration = inputs.configuration()
    services = configuration.services
    find_kube = inputs.find_kube if services.source == "kubernetes" else None
    manifests = inputs.find_manifests(lambda: SERVICE_READING) if find_kube is None else None
    parts = ServiceParts(
        clock=inputs.clock, tell=inputs.tell, kube=find_kube, here=pods or NoPods(), manifests=manifests
    )
    parts = replace(parts, ends=_local_ends(inputs, pods, has_runtime=has_runtime))
    plane = wire_services(configuration, parts)
    units = [PlaneUnit("services", plane.run, is_plane=True, stop_s=services.drain_seconds + 5.0)]
    is_compatible = asks_for(configuration, "kube-proxy")
    if address := services.metrics_address or (COMPATIBLE_METRICS if is_compatible else ""):
        pages: dict[str, Handler] = {
            "/metrics": inputs.metrics_page,
            "/healthz": lambda _query, _headers: Page(200, b"ok"),
            "/proxyMode": lambda _query, _headers: Page(200, services.backend.encode()),
            "/configz": lambda _query, _headers: configz_page(inputs.configuration()),
        }
        server = HttpServer(address, pages, key="services.metricsAddress")
        units.insert(0, PlaneUnit("services-metrics", server.run))
    # Units end in reverse: health is answered until the plane has drained.
    if services.healthz_address:
        server = HttpServer(services.healthz_address, plane.pages, key="services.healthzAddress")
        units.insert(0, PlaneUnit("services-health", server.run))
    return Attached(
        offers=plane,
        service=ServiceProxyService(plane.view, plane.keeper.report),
        units=tuple(units),
        families=(plane.families,),
        named_alike={"kube-proxy": plane.compatible},
        advice=(partial(service_advice, plane.view),),
        apply=plane.apply,
        close=plane.close,
    )


def _local_ends(inputs: PlaneInputs, pods: PodsHere | None, *, has_runtime: bool) -> LocalEnds | None:
    """Whoever tells of pods of this node; None: nobody, or nobody is asked."""
    if outage_settings(inputs.configuration()).mode != "judge":
        return None
    # The messages of a runtime are large, and most nodes have no use of them here.
    from agent.services.attach.local_ends import AllEnds, OwnPodEnds, RuntimeEnds

    found: list[LocalEnds] = [OwnPodEnds(pods)] if pods is not None else []
    if has_runtime:
        found.append(RuntimeEnds(inputs.runtime.cri, inputs.runtime.events))
    return AllEnds(found) if found else None


def configz_page(configuration: Configuration) -> Page:
    """`/configz` beside the metrics of Services, where kube-proxy has it."""
    document = as_document(configuration)
    shown = {"config.kepd.dev": {name: document[name] for name in SHOWN if name in document}}
    return Page(200, json.dumps(shown).encode(), "application/json")


async def service_advice(view: ServicesView) -> list[Advice]:
    """One for each fault, of the first Services by name that have any."""
    found: list[Advice] = []
    async for one in _reports(view):
        texts = one.findings or (() if one.is_programmed else ("it is not programmed",))
        found += [_advice(f"{one.namespace}/{one.name}", text) for text in texts]
        if len(found) >= MOST_NAMED:
            more = "others may have faults too; see kepctl get services"
            return [*found, Advice(subject="Services", found=f"{len(found)} faults", wanted="0", text=more)]
    return found


async def _reports(view: ServicesView) -> AsyncIterator[ServiceReport]:
    async with aclosing(view.services()) as walk:
        async for _, one in walk:
            yield one


def _advice(name: str, text: str) -> Advice:
    return Advice(
        subject=f"Service {name}", found=text, wanted="no fault", text="it does not answer, or not everywhere",
        mend=f"kepctl describe service {name}",
    )  # fmt: skip
