# SPDX-License-Identifier: Apache-2.0
"""What runs in this process: the planes, in their order, and what each is given of those before it.

Units end in reverse order, so the API, which comes last, finishes its calls while the planes still run. Planes are
imported only where they run.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.api.way_in import WayIn
from agent.config.document import PLANES, Configuration
from agent.config.effective import enabled_planes
from agent.config.packages import is_installed, not_installed
from agent.host.checkup.surroundings import CheckScope, Surroundings
from agent.host.local_api import NOT_NEEDED, api_server, api_services, http_server
from agent.host.planes import Planes
from agent.host.process import Process, share
from agent.kit.configuration import RunningConfiguration
from agent.kit.logs import Levels
from agent.kit.memory import settle_memory
from agent.kit.plane import Attached, PlaneInputs
from agent.model.component import State

if TYPE_CHECKING:
    from kepd_door.attach.unit import DoorUnit

# Few nodes have devices.
UNTOLD_WHEN_OFF = ("devices", "policies", "dns", "observe")
# A process that has these planes alone needs no container runtime.
WITHOUT_RUNTIME = frozenset({"services", "dns"})


def _images(inputs: PlaneInputs, _planes: Planes) -> Attached[Any]:
    from agent.images.attach.unit import attach

    return attach(inputs)


def _devices(inputs: PlaneInputs, planes: Planes) -> Attached[Any]:
    from agent.host.joints.pods_devices import PodsWithDevices
    from kepd_devices.attach.unit import attach

    return attach(inputs, PodsWithDevices(planes) if "pods" in planes.enabled else None)


def _policies(inputs: PlaneInputs, planes: Planes) -> Attached[Any]:
    from agent.drivers.interfaces.pod_links import PodLinks
    from agent.host.joints.pods_policies import PodsUnderPolicies
    from agent.policies.attach.unit import attach

    return attach(inputs, PodsUnderPolicies(planes, PodLinks()) if "pods" in planes.enabled else None)


def _pods(inputs: PlaneInputs, planes: Planes) -> Attached[Any]:
    from agent.host.joints.pods_images import QueuedImages
    from agent.host.joints.pods_observe import NodeLooks
    from agent.pods.attach.unit import PodNeeds, attach

    images, devices = planes.images, planes.devices
    needs = PodNeeds(
        node=NodeLooks.of(inputs, planes),
        name_servers=_name_servers(),
        images=QueuedImages(inputs.runtime.cri, images.puller) if images is not None else None,
        devices=devices.of_pods if devices is not None else None,
        with_devices=devices.with_devices if devices is not None else None,
        policies=planes.policies.plane if planes.policies is not None else None,
    )
    return attach(inputs, needs)


def _name_servers() -> Callable[[Configuration], tuple[str, ...]]:
    """What pods ask for names: this node, where it answers them."""
    if not is_installed("dns"):
        return lambda configuration: tuple(configuration.pods.cluster_dns)
    from kepd_dns.attach.settings import pod_servers

    return pod_servers


def _proxy(inputs: PlaneInputs, planes: Planes) -> Attached[Any]:
    from agent.host.joints.proxy_images import QueueForProxy
    from agent.host.joints.proxy_pods import stop_order
    from agent.proxy.attach.unit import attach

    images = planes.images
    queue = QueueForProxy(images.puller, inputs.runtime.cri, inputs.clock) if images is not None else None
    return attach(inputs, queue, stop_order)


def _services(inputs: PlaneInputs, planes: Planes) -> Attached[Any]:
    from agent.services.attach.unit import attach

    here = planes.pods.here if planes.pods is not None else None
    return attach(inputs, here, has_runtime=not planes.enabled <= WITHOUT_RUNTIME)


def _dns(inputs: PlaneInputs, planes: Planes) -> Attached[Any]:
    from agent.host.joints.dns_services import ServicesForNames
    from agent.host.joints.pods_dns import pods_for_names
    from kepd_dns.attach.unit import PodsHere, attach

    if planes.services is None:
        raise ValueError("the plane for names needs the services plane in its process")
    pods = pods_for_names(inputs.configuration, planes.pods.here) if planes.pods is not None else PodsHere()
    return attach(inputs, ServicesForNames(planes.services), pods)


def _observe(inputs: PlaneInputs, planes: Planes) -> Attached[Any]:
    from agent.observe.attach.unit import attach

    images = planes.images.collector.on_disks if planes.images is not None else None
    if planes.pods is None:
        return attach(inputs, None, images)
    # What joins the two takes all of the pods plane with it.
    from agent.host.joints.pods_observe import own_pods

    return attach(inputs, own_pods(planes.pods), images)


# Each with what it needs of those above it. Observation has no switch: it goes where there is a runtime.
ATTACH: Mapping[str, Callable[[PlaneInputs, Planes], Attached[Any]]] = {
    "images": _images,
    "devices": _devices,
    "policies": _policies,
    "pods": _pods,
    "proxy": _proxy,
    "services": _services,
    "dns": _dns,
    "observe": _observe,
}


def compose(
    running: RunningConfiguration, levels: Levels, environment: Mapping[str, str], *, ends_pods: bool = False
) -> Process:
    """Make everything. Raises PathTaken or OSError where this node cannot run us at all. `ends_pods`: they go with the
    daemon, instead of running on without it."""
    process = Process(running, levels, environment)
    configuration = process.configuration
    enabled = frozenset(enabled_planes(configuration))
    if enabled and enabled <= WITHOUT_RUNTIME:
        for name in ("runtime", "events"):
            process.board.add(name, State.OFF, NOT_NEEDED)
    else:
        process.find_runtime()
    planes = Planes(enabled)
    attached: dict[str, Attached[Any]] = {}
    for name in (*PLANES, "observe"):
        is_here = name in enabled or (name == "policies" and reads_policies(configuration, enabled))
        if (is_here and is_installed(name)) or (name == "observe" and process.runtime is not None):
            attached[name] = ATTACH[name](process.inputs, planes)
            setattr(planes, name, attached[name].offers)
            process.take(attached[name])
        elif not is_installed(name):
            process.board.add(name, State.ABSENT, not_installed(name), is_plane=True)
        elif name not in UNTOLD_WHEN_OFF:
            process.board.add(name, State.OFF, "switched off", is_plane=True)
    if ends_pods and planes.pods is not None:
        from agent.host.joints.pods_at_end import pods_at_end

        process.add(pods_at_end(planes.pods.runner, process.clock))
    process.add_unit("lifecycle", process.lifecycle.run)
    process.advisers += [running.advice, _surroundings(process, enabled).advice]
    process.sheds.append(settle_memory)
    process.advisers += [process.relief.advice, process.turns.advice]
    process.add_unit("memory", process.relief.run)
    if configuration.api.http_address:
        process.add_unit("http", http_server(process, attached).run)
    door = _door(configuration)
    way_in = WayIn(lambda: process.access, door.kubeconfig) if door is not None else None
    services = api_services(process, attached, planes, way_in)
    if door is not None:
        process.follow_manifests()
        door.services = services
        process.add_unit("door", door.run)
    server = api_server(process, services)
    process.add_unit("api", server.run, stop_s=server.stop_grace_s + 2.0)
    share(configuration, process.access)
    process.follow_reloads()
    return process


def reads_policies(configuration: Configuration, enabled: frozenset[str]) -> bool:
    """Also where none is enforced: who wrote one has to hear of it, and what was in force has to go."""
    return "pods" in enabled or ("services" in enabled and configuration.services.source == "manifests")


def _door(configuration: Configuration) -> "DoorUnit | None":
    if not configuration.api.door.address or not is_installed("door"):
        return None
    from kepd_door.attach.unit import DoorUnit

    return DoorUnit(configuration.api.door, Path(configuration.node.state_directory), configuration.node.name)


def _surroundings(process: Process, enabled: frozenset[str]) -> Surroundings:
    pods, node = process.configuration.pods, process.configuration.node
    has_pods = "pods" in enabled
    folders = (Path(pods.directory), Path(pods.log_directory)) if has_pods else ()
    scope = CheckScope(
        has_pods=has_pods, has_services="services" in enabled, folders=(*folders, Path(node.state_directory))
    )
    return Surroundings(process.find_runtime().cri if has_pods else None, scope)
