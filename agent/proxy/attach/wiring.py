# SPDX-License-Identifier: Apache-2.0
"""The proxy plane put together: the runtime's drivers, the pull queue, the kubelet's configuration, the endpoint."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
from prometheus_client.core import Metric

from agent.config.document import Configuration
from agent.drivers.clock.driver import SystemClock
from agent.drivers.cri.driver import CriRuntime
from agent.drivers.kubelet.driver import KubeletConfiguration
from agent.drivers.probe_client.driver import NetworkProbeClient
from agent.drivers.state_files.driver import StateFiles
from agent.drivers.systemd.driver import activated_socket
from agent.images.run.puller import Puller
from agent.kit.outside import Outside
from agent.model.component import Report
from agent.model.image_pull import CallerPull, PullRequest
from agent.model.image_reference import ReferenceInvalid, parse_reference
from agent.model.pod import ContainerKind
from agent.pods.plan.order import Member, waits_for_end
from agent.proxy.attach.endpoint import ProxyEndpoint
from agent.proxy.attach.view import ProxyView
from agent.proxy.gates.kubelet_advice import KubeletSettings, read_kubelet_settings
from agent.proxy.gates.stop import StopRules
from agent.proxy.run.plane import HOLDS_END_S, ProxyParts, ProxyPlane
from agent.proxy.run.state import ProxySettings

UNIX = "unix://"
# FileDescriptorName in the socket unit.
ACTIVATED = "cri"
SPARE_S = 10.0
LOOK_S = 0.2


class ProxyUnit(msgspec.Struct, frozen=True, kw_only=True):
    view: ProxyView
    run: Callable[[Report], Awaitable[None]]
    families: Callable[[], Iterable[Metric]]
    close: Callable[[], Awaitable[None]]
    stop_s: float


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


class _Queue:
    def __init__(self, puller: Puller, cri: CriRuntime, clock: SystemClock) -> None:
        self._puller = puller
        self._cri = cri
        self._clock = clock

    async def run_caller_pull(self, request: PullRequest, fingerprint: str, pull: CallerPull) -> None:
        await self._puller.run_caller_pull(request, fingerprint, pull)

    @property
    def is_busy(self) -> bool:
        return any(not one.stage.is_over for one in self._puller.pulls.items.values())

    async def settled(self, image: str, longest_s: float) -> None:
        """A kubelet names images by id; the runtime knows what else they are called."""
        until_s = self._clock.now_s() + longest_s
        known = await self._cri.image_status(image)
        names = {_full_name(image)}
        if known is not None:
            names.update(map(_full_name, (*known.repo_tags, *known.repo_digests)))
        while names & self._under_way() and self._clock.now_s() < until_s:
            await self._clock.sleep(LOOK_S)

    def _under_way(self) -> set[str]:
        return {_full_name(one.image) for one in self._puller.pulls.items.values() if not one.stage.is_over}


def _full_name(image: str) -> str:
    try:
        return str(parse_reference(image))
    except ReferenceInvalid:
        return image


def wire_proxy(outside: Outside) -> ProxyUnit:
    configuration = outside.configuration()
    socket = Path(configuration.proxy.socket)
    link = Path(configuration.proxy.link) if configuration.proxy.link else None
    runtime_path = Path(configuration.runtime.endpoint.removeprefix(UNIX))
    endpoint = ProxyEndpoint(socket, link, runtime_path, activated_socket(outside.environment, ACTIVATED))
    files = StateFiles(Path(configuration.node.state_directory) / "proxy")
    parts = ProxyParts(
        runtime=outside.runtime.cri,
        events=outside.runtime.events,
        asker=NetworkProbeClient(),
        records=files,
        kubelet=_Kubelet(outside.configuration),
        clock=outside.clock,
        pulls=_Queue(outside.puller, outside.runtime.cri, outside.clock) if outside.puller is not None else None,
        endpoint=endpoint,
        tell=outside.tell,
        settings=lambda: proxy_settings(outside.configuration()),
        runtime_path=str(runtime_path),
        drain_s=configuration.images.drain,
        endings=outside.endings,
        traces=outside.traces,
    )
    plane = ProxyPlane(parts)

    async def run(report: Report) -> None:
        with endpoint.locked():
            await plane.run(report)

    async def close() -> None:
        files.close()

    return ProxyUnit(
        view=ProxyView(plane, socket, link),
        run=run,
        families=plane.families,
        close=close,
        stop_s=HOLDS_END_S + parts.drain_s + SPARE_S,
    )


def proxy_settings(configuration: Configuration) -> ProxySettings:
    proxy = configuration.proxy
    return ProxySettings(StopRules(stop_order, proxy.assume_hidden_hooks), fails_open=proxy.fail_open)


def stop_order(sidecars: Sequence[str], mains: Sequence[str]) -> Mapping[str, frozenset[str]]:
    members = [Member(name=name, kind=ContainerKind.SIDECAR) for name in sidecars]
    members += [Member(name=name, kind=ContainerKind.MAIN) for name in mains]
    return waits_for_end(members)
