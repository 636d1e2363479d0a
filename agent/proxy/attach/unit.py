# SPDX-License-Identifier: Apache-2.0
"""The proxy plane put together: the runtime, the pull queue, the kubelet's configuration, the endpoint."""

from collections.abc import Callable
from pathlib import Path

from agent.config.document import Configuration
from agent.drivers.kubelet.driver import KubeletConfiguration
from agent.drivers.probe_client.driver import NetworkProbeClient
from agent.drivers.state_files.driver import StateFiles
from agent.drivers.systemd.driver import activated_socket
from agent.kit.plane import Attached, PlaneInputs, PlaneUnit
from agent.model.component import Report
from agent.proxy.attach.endpoint import ProxyEndpoint
from agent.proxy.attach.view import CriProxyService, ProxyView
from agent.proxy.gates.kubelet_advice import KubeletSettings, read_kubelet_settings
from agent.proxy.gates.stop import StopOrder, StopRules
from agent.proxy.ports import Pulls
from agent.proxy.run.plane import HOLDS_END_S, ProxyParts, ProxyPlane
from agent.proxy.run.state import ProxySettings

UNIX = "unix://"
# FileDescriptorName in the socket unit.
ACTIVATED = "cri"
SPARE_S = 10.0


class _Kubelet:
    """The kubelet's settings, from the place that the configuration in force names."""

    def __init__(self, configuration: Callable[[], Configuration]) -> None:
        self._configuration = configuration
        self._last: tuple[object, KubeletSettings] | None = None

    async def settings(self) -> KubeletSettings:
        """As they are now. Raises OSError or ValueError."""
        place = self._configuration().proxy.kubelet_config
        reader = KubeletConfiguration(place)
        content, overlay = await reader.read()
        asked = (reader.place, content, overlay)
        if self._last is None or self._last[0] != asked:
            self._last = asked, read_kubelet_settings(content, reader.place, overlay)
        return self._last[1]


def attach(inputs: PlaneInputs, pulls: Pulls | None, stop_order: StopOrder) -> Attached[None]:
    """`pulls` is the queue of this node, where it has one; `stop_order` tells which containers end after which."""
    configuration = inputs.configuration()
    socket = Path(configuration.proxy.socket)
    link = Path(configuration.proxy.link) if configuration.proxy.link else None
    runtime_path = Path(configuration.runtime.endpoint.removeprefix(UNIX))
    endpoint = ProxyEndpoint(socket, link, runtime_path, activated_socket(inputs.environment, ACTIVATED))
    files = StateFiles(Path(configuration.node.state_directory) / "proxy")
    parts = ProxyParts(
        runtime=inputs.runtime.cri,
        events=inputs.runtime.events,
        asker=NetworkProbeClient(),
        records=files,
        kubelet=_Kubelet(inputs.configuration),
        clock=inputs.clock,
        pulls=pulls,
        endpoint=endpoint,
        tell=inputs.tell,
        settings=lambda: proxy_settings(inputs.configuration(), stop_order),
        runtime_path=str(runtime_path),
        drain_s=configuration.images.drain,
        endings=inputs.endings,
        traces=inputs.traces,
    )
    plane = ProxyPlane(parts)
    view = ProxyView(plane, socket, link)

    async def run(report: Report) -> None:
        with endpoint.locked():
            await plane.run(report)

    async def close() -> None:
        files.close()

    return Attached(
        offers=None,
        service=CriProxyService(view),
        units=(PlaneUnit("proxy", run, is_plane=True, stop_s=HOLDS_END_S + parts.drain_s + SPARE_S),),
        families=(plane.families,),
        advice=(view.advice,),
        close=close,
    )


def proxy_settings(configuration: Configuration, stop_order: StopOrder) -> ProxySettings:
    proxy = configuration.proxy
    return ProxySettings(StopRules(stop_order, proxy.assume_hidden_hooks), fails_open=proxy.fail_open)
