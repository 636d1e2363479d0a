# SPDX-License-Identifier: Apache-2.0
"""What the process answers by itself: the gRPC API for all planes, and the pages of the HTTP port."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2

from agent.api.errors import Absent
from agent.api.http import Handler, Headers, HttpServer, Page, Query, health_page
from agent.api.http_connections import Wrap
from agent.api.server import ApiServer
from agent.api.services.health import HealthService
from agent.api.services.node import NodeService
from agent.api.services.objects import ObjectService
from agent.api.services.topology import TopologyService
from agent.api.socket_path import listen_at
from agent.api.way_in import WayIn
from agent.config.document import Configuration
from agent.drivers.systemd.driver import activated_socket
from agent.host.joints.manifests import wire_objects
from agent.host.joints.topology import TopologyOfManifests
from agent.host.node_view import NodeAnswers, node_features
from agent.host.planes import Planes
from agent.host.process import Process
from agent.kit.plane import Attached
from agent.model.clock import Clock
from agent.model.runtime.features import RuntimeFacts
from agent.observe.attach.node_logs import wire_node_logs
from agent.wire.kepd.v1 import (
    cri_proxy_pb2,
    device_pb2,
    dns_pb2,
    image_pb2,
    node_pb2,
    object_pb2,
    pod_pb2,
    policy_pb2,
    service_proxy_pb2,
    topology_pb2,
)

NOT_NEEDED = "no plane here needs it"
SOCKET_MODE = 0o660


def http_server(process: Process, attached: Mapping[str, Attached[Any]]) -> HttpServer:
    configuration = process.configuration

    def livez(query: Query, _headers: Headers) -> Page:
        overdue = process.lifecycle.overdue()
        return health_page(query, process.board.lines(), lambda line: line.name not in overdue)

    def readyz(query: Query, _headers: Headers) -> Page:
        return health_page(query, process.board.lines(), lambda line: line.is_ready)

    pages: dict[str, Handler] = {"/metrics": process.metrics.page, "/livez": livez, "/readyz": readyz}
    for one in attached.values():
        pages.update(one.pages)
    return HttpServer(configuration.api.http_address, pages, tls=tls_of(configuration, process.clock))


def tls_of(configuration: Configuration, clock: Clock) -> Callable[[], Wrap] | None:
    """Reads the certificates, where any are configured, when the port opens. Only who has one pays for what speaks
    TLS."""
    tls = configuration.api.http_tls
    certificate, private_key, clients = tls.cert_file, tls.key_file, tls.client_ca_file
    if not certificate:
        return None

    def read() -> Wrap:
        from agent.drivers.tls_files.driver import TlsFiles

        return TlsFiles(certificate, private_key, clients, clock.now_s, "api.httpTLS").wrap

    return read


Services = Mapping[ServiceDescriptor, object]


def api_server(process: Process, services: Services) -> ApiServer:
    configuration = process.configuration
    listener = activated_socket(process.environment, "api")
    if listener is None:
        listener = listen_at(Path(configuration.api.socket), SOCKET_MODE)
        process.resources.callback(Path(configuration.api.socket).unlink, missing_ok=True)
    process.resources.callback(listener.close)
    return ApiServer(
        services,
        listener,
        Path(configuration.node.run_directory) / "private",
        lambda: process.access,
        process.metrics.api_called,
        is_short=lambda: process.relief.is_short,
    )


def api_services(
    process: Process, attached: Mapping[str, Attached[Any]], planes: Planes, way_in: WayIn | None
) -> Services:
    """By what describes them; `way_in` makes kubeconfigs, where the door is open."""

    def service_of(plane: str) -> object:
        return (attached[plane].service if plane in attached else None) or Absent(plane)

    current = process.inputs.configuration
    programmed = planes.services.programmed if planes.services is not None else None
    topology = TopologyOfManifests(current, programmed, process.in_force)
    by_file = {
        node_pb2: _node_service(process, planes, way_in),
        pod_pb2: service_of("pods"),
        device_pb2: service_of("devices"),
        policy_pb2: service_of("policies"),
        image_pb2: service_of("images"),
        service_proxy_pb2: service_of("services"),
        cri_proxy_pb2: service_of("proxy"),
        dns_pb2: service_of("dns"),
        topology_pb2: TopologyService(topology),
        health_pb2: HealthService(process.board),
    }
    services = {one: served for file, served in by_file.items() for one in file.DESCRIPTOR.services_by_name.values()}
    objects = ObjectService(wire_objects(current, planes.pods, planes.policies, process.in_force), services)
    return {**services, object_pb2.DESCRIPTOR.services_by_name["ObjectService"]: objects}


def _node_service(process: Process, planes: Planes, way_in: WayIn | None) -> NodeService:
    running, runtime = process.running, process.runtime
    runner = planes.pods.runner if planes.pods is not None else None
    without = RuntimeFacts(process.configuration.runtime.endpoint, message=NOT_NEEDED)
    facts = NodeAnswers(
        running,
        lambda: runtime.watch.facts if runtime is not None else without,
        process.levels,
        time.time(),
        lambda: runner.drained if runner is not None else None,
        lambda: runner.evictor.conditions if runner is not None else (),
    )
    return NodeService(
        facts,
        process.board,
        running,
        process.ring.events,
        process.advisers,
        planes.observe.usage if planes.observe is not None else None,
        eviction=runner.evictor.report if runner is not None else None,
        features=partial(node_features, running, runtime, process.environment),
        logs=wire_node_logs(process.inputs.configuration),
        way_in=way_in,
    )
