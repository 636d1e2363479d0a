# SPDX-License-Identifier: Apache-2.0
"""What people ask and order of the devices plane."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping

import msgspec

from agent.model.devices.pod_resources import PodResources, ResourceUse
from agent.model.devices.problem import DevicesNotReady
from agent.model.devices.report import CdiReport, ClaimExplanationReport, ClaimReport, DeviceReport, DriverReport
from agent.model.placed import Walk
from agent.model.pods.pod import PodSpec
from agent.model.pods.state import PodState
from agent.model.refused import Refused
from agent.model.runtime.features import RuntimeFeatures
from kepd_devices.cdi.merging import CannotMerge
from kepd_devices.local.configured import MISSING
from kepd_devices.manifest.objects import Claim
from kepd_devices.manifest.pod_claims import NotThere, claims_of_pod, with_uid
from kepd_devices.plan.health import HEALTHY, NOT_KNOWN, UNHEALTHY, UNKNOWN, DeviceHealth
from kepd_devices.plan.plugins.plugin_choice import VERSION
from kepd_devices.plan.reasons import DeviceId, Reason
from kepd_devices.run.claims import DeviceClaims
from kepd_devices.run.drivers.local_driver import LocalDriver
from kepd_devices.run.drivers.registry import PluginRegistry
from kepd_devices.run.plugin_connections import Plugin
from kepd_devices.run.plugins import PluginDevices
from kepd_devices.view.cdi_text import cdi_listed, edit_lines, given_lines, told_features
from kepd_devices.view.explained import ClaimExplained, Explanation
from kepd_devices.view.listed import claim_reports, device_reports, explanation_report, plugin_reports
from kepd_devices.view.pod_resources import pod_use
from kepd_devices.view.pod_status import with_devices

NOTHING: Mapping[str, str] = {}


async def _unknown_runtime() -> RuntimeFeatures:
    return RuntimeFeatures()


class DeviceView:
    """`pod` finds a pod by namespace and name."""

    def __init__(
        self,
        claims: DeviceClaims,
        own: Mapping[str, LocalDriver],
        registry: PluginRegistry | None,
        plugins: PluginDevices | None = None,
        printed: Mapping[str, str] = NOTHING,
        *,
        pod: Callable[[str, str], PodSpec | None] = lambda _namespace, _name: None,
        runtime: Callable[[], Awaitable[RuntimeFeatures]] = _unknown_runtime,
    ) -> None:
        """`printed` is what commands printed that failed, by driver or resource and device."""
        self._printed = printed
        self._plugins = plugins
        self._claims = claims
        self._own = own
        self._registry = registry
        self.pod = pod
        self.runtime = runtime

    async def devices(self, after: str) -> Walk[DeviceReport]:
        for one in sorted(self._devices(), key=lambda it: it.name):
            if one.name > after:
                yield one.name, one

    def with_devices(self, pod: PodState) -> PodState:
        grants = self._plugins.records.get(pod.uid) if self._plugins is not None else None
        if not pod.spec.resource_claims and grants is None:
            return pod
        records = [one for one in self._claims.records.values() if one.held_by(pod.uid)]
        # One that was not there since kepd began is in no slice.
        present = {
            DeviceId(one.spec.driver, one.spec.pool.name, device.name)
            for one in self._claims.slices()
            if one.spec.driver in self._own
            for device in one.spec.devices or ()
            if all(taint.key != MISSING for taint in device.taints)
        }

        def health(device: DeviceId) -> str:
            if device.driver in self._own and device not in present:
                return UNHEALTHY
            return self._health(device).status

        return with_devices(pod, records, grants, health, self._plugin_health)

    def _health(self, device: DeviceId) -> DeviceHealth:
        if (own := self._own.get(device.driver)) is not None:
            why = own.devices.unhealthy.get(device.device, "")
            return DeviceHealth(UNHEALTHY if why else HEALTHY, why)
        return self._registry.health(device) if self._registry is not None else NOT_KNOWN

    def pod_uses(self) -> list[PodResources]:
        """Of pods that have devices."""
        holders = [one for record in self._claims.records.values() for one in record.holders]
        grants = self._plugins.records.values() if self._plugins is not None else ()
        names = sorted({(one.namespace, one.name) for one in (*holders, *grants)})
        pods = [one for one in (self.pod(*name) for name in names) if one is not None]
        return [self._pod_use(one) for one in pods]

    def _pod_use(self, pod: PodSpec) -> PodResources:
        grants = self._plugins.records.get(pod.uid) if self._plugins is not None else None
        records = [one for one in self._claims.records.values() if one.held_by(pod.uid)]
        return pod_use(pod, records, grants, self._nodes)

    def _nodes(self, resource: str, device: str) -> tuple[int, ...]:
        plugin = self._plugins.plugins.get(resource) if self._plugins is not None else None
        known = plugin.devices.get(device) if plugin is not None else None
        return known.nodes if known is not None else ()

    def allocatable(self) -> list[ResourceUse]:
        """What plugins list and is well, by resource and NUMA nodes."""
        found: dict[tuple[str, tuple[int, ...]], list[str]] = {}
        for resource, plugin in self._plugins.plugins.items() if self._plugins is not None else ():
            for name, device in plugin.healthy.items():
                found.setdefault((resource, device.nodes), []).append(name)
        return [ResourceUse(resource, tuple(ids), nodes) for (resource, nodes), ids in sorted(found.items())]

    def _plugin_health(self, resource: str, device: str) -> str:
        plugin = self._plugins.plugins.get(resource) if self._plugins is not None else None
        if plugin is None or not plugin.is_connected:
            return UNKNOWN
        return HEALTHY if device in plugin.healthy else UNHEALTHY

    def _devices(self) -> Iterator[DeviceReport]:
        for one in self._listed():
            driver, _, rest = one.name.partition("/")
            key = f"{driver}/{rest.rpartition('/')[2]}"
            said = (self._printed.get(it, "") for it in (f"health of {key}", key, one.name))
            printed = next(filter(None, said), "")
            seen = [f"pod {pod} is privileged and sees every device" for pod in one.pods if self._is_privileged(pod)]
            text = "; ".join(filter(None, (one.message, printed, *seen)))
            yield msgspec.structs.replace(one, message=text) if text else one

    def _is_privileged(self, key: str) -> bool:
        namespace, _, name = key.partition("/")
        pod = self.pod(namespace, name)
        contexts = [one.fields.security_context for one in pod.containers] if pod is not None else []
        return any(one is not None and one.privileged for one in contexts)

    def _listed(self) -> Iterator[DeviceReport]:
        claims = self._claims
        yield from device_reports(claims.slices(), claims.records.values(), claims.node, self._health)
        if self._plugins is not None:
            for plugin in self._plugins.plugins.values():
                yield from plugin_reports(
                    plugin.resource, plugin.devices, plugin.healthy, self._plugins.used(plugin.resource)
                )

    async def claims(self, after: str) -> Walk[ClaimReport]:
        claims = self._claims
        objects = claims.objects.claims.values()
        reports = claim_reports(
            claims.records.values(), objects, claims.unreadable, claims.problems, claims.unrecorded()
        )
        placed = sorted(((f"{one.namespace}/{one.name}/{one.uid}", one) for one in reports), key=lambda it: it[0])
        for place, one in placed:
            if place > after:
                yield place, one

    def drivers(self) -> list[DriverReport]:
        slices = self._claims.slices()
        found = []
        for name, driver in sorted(self._claims.drivers.items()):
            own = [one for one in slices if one.spec.driver == name]
            registered = self._registry.drivers.get(name) if self._registry is not None else None
            instances = [one for one, _ in registered.instances] if registered is not None else []
            found.append(
                DriverReport(
                    name=name,
                    kind="own" if name in self._own else "dra",
                    versions=tuple(dict.fromkeys(one.version for one in instances)),
                    endpoints=tuple(one.endpoint for one in instances),
                    peers=tuple(dict.fromkeys(str(one.peer) for one in instances)),
                    slices=len(own),
                    devices=sum(len(one.spec.devices or ()) for one in own),
                    why_away=driver.why_away,
                    last_error=registered.last_error or registered.health.problem if registered is not None else "",
                )
            )
        plugins = self._plugins.plugins.values() if self._plugins is not None else ()
        return [*found, *map(_plugin_report, plugins)]

    def count_devices(self) -> Counter[tuple[str, str]]:
        """Of plugins the resource is the driver."""
        counted: Counter[tuple[str, str]] = Counter()
        resources = self._plugins.plugins if self._plugins is not None else {}
        for one in self._devices():
            driver, _, rest = one.name.partition("/")
            resource = f"{driver}/{rest.partition('/')[0]}"
            counted[resource if resource in resources else driver, one.state.partition(" ")[0]] += 1
        return counted

    def count_claims(self) -> Counter[str]:
        return Counter(str(one.stage) for one in self._claims.records.values())

    def count_drivers(self) -> Counter[tuple[str, str]]:
        return Counter((one.kind, "away" if one.why_away else "ready") for one in self.drivers())

    async def explain(self, namespace: str, name: str, *, is_pod: bool) -> ClaimExplanationReport:
        """Raises Refused."""
        claims = self._of_pod(namespace, name) if is_pod else [self._claim(namespace, name)]
        missing = tuple(one for one in claims if one.metadata.uid not in self._claims.records)
        found = await self._claims.searches.explain(self._claims.question(missing or tuple(claims)))
        if missing:
            return explanation_report(found)
        records = [self._claims.records[one.metadata.uid] for one in claims]
        devices = {(one.driver, one.pool, one.device) for record in records for one in record.results}
        return explanation_report(_as_held(found, devices))

    def _of_pod(self, namespace: str, name: str) -> list[Claim]:
        pod = self.pod(namespace, name)
        if pod is None:
            raise Refused("not_found", f"no pod {namespace}/{name} is known here")
        held = [one.claim for one in self._claims.records.values() if one.held_by(pod.uid)]
        if held:
            return held
        try:
            found = [one.claim for one in claims_of_pod(pod, self._claims.objects)]
        except NotThere as error:
            raise Refused("precondition", f"pod {namespace}/{name} waits: {error}") from error
        if not found:
            raise Refused("precondition", f"pod {namespace}/{name} claims no devices")
        return found

    def _claim(self, namespace: str, name: str) -> Claim:
        key = f"{namespace}/{name}"
        for record in self._claims.records.values():
            if record.key == key:
                return record.claim
        if (claim := self._claims.objects.claims.get(key)) is not None:
            return with_uid(claim)
        text = f"no claim {key} is known here; one of a template is there once its pod has devices, ask with --pod"
        raise Refused("not_found", text)

    async def cdi(self, after: str) -> Walk[CdiReport]:
        catalogue = await self._claims.cdi.catalogue()
        for one in catalogue.every:
            if one > after:
                yield one, cdi_listed(catalogue, one)

    async def explain_cdi(self, text: str, runtime: str) -> CdiReport:
        """Raises Refused."""
        features = told_features(runtime) if runtime else await self.runtime()
        try:
            found = (await self._claims.cdi.catalogue()).resolve(text)
        except CannotMerge as error:
            raise Refused("not_found", str(error)) from error
        report = CdiReport(
            id=text, file=found.file.path, cdi_version=found.file.spec.cdi_version,
            edits=tuple(edit_lines(found)), runtime=features.label,
        )  # fmt: skip
        try:
            given = await self._claims.resolved([text], features)
        except DevicesNotReady as error:
            return msgspec.structs.replace(report, refusal=str(error))
        return msgspec.structs.replace(report, given=tuple(given_lines(given)))

    async def reset(self, name: str) -> None:
        """A device in quarantine, by DRIVER/POOL/DEVICE. Raises Refused."""
        driver, _, rest = name.partition("/")
        device = rest.rpartition("/")[2]
        own = self._own.get(driver)
        if own is None:
            raise Refused("precondition", f"{driver} is none of kepd's own drivers; only those reset devices")
        await own.reset(device)
        self._claims.changed()

    async def release(self, uid: str) -> None:
        """Raises Refused."""
        if self._plugins is None or not await self._plugins.forget(uid):
            await self._claims.forget(uid)


def _plugin_report(plugin: Plugin) -> DriverReport:
    return DriverReport(
        name=plugin.resource,
        kind="plugin",
        versions=(VERSION,),
        endpoints=(plugin.endpoint,),
        devices=len(plugin.devices),
        why_away="" if plugin.is_connected else f"plugin {plugin.resource} is away",
    )


def _as_held(found: Explanation, devices: set[tuple[str, str, str]]) -> Explanation:
    """A claim that has devices: those are chosen, whatever a search would find today."""
    claims = []
    for claim in found.claims:
        requests = []
        for request in claim.requests:
            verdicts = []
            for one in request.verdicts:
                is_held = (one.device.driver, one.device.pool, one.device.device) in devices
                word = "chosen" if is_held else "not-needed" if one.reason.word == "chosen" else one.reason.word
                reason = one.reason if word == one.reason.word else Reason(word)
                verdicts.append(msgspec.structs.replace(one, reason=reason))
            requests.append(msgspec.structs.replace(request, verdicts=tuple(verdicts)))
        claims.append(ClaimExplained(claim.key, tuple(requests)))
    end = f"has {len(devices)} devices" if len(devices) != 1 else "has 1 device"
    return Explanation("allocated", end, tuple(claims))
