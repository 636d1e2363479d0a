# SPDX-License-Identifier: Apache-2.0
"""Works out what an instance of a container is made with; makes volumes and hosts file. Never: calls the runtime."""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import structlog
from msgspec.structs import replace

from agent.model.devices.container_devices import ContainerDevices
from agent.model.devices.problem import DevicesNotReady
from agent.model.pods.container_fields import VolumeMount
from agent.model.pods.fields import Volume
from agent.model.pods.pod import ContainerSpec, PodSpec
from agent.pods.manifest.annotations import KepdAnnotations
from agent.pods.ports import Groups
from agent.pods.run.one_pod.run_state import LivePod
from agent.pods.runtime.cri_config import (
    cgroup_of,
    check_support,
    container_config,
    container_resources,
    sandbox_config,
)
from agent.pods.runtime.cri_security import Made, NodeShape, id_mapping
from agent.pods.runtime.environment import (
    ConfigProblem,
    PodFacts,
    ProgramRoom,
    expand,
    expand_all,
    referenced,
    resolve_environment,
)
from agent.pods.runtime.network_files import Resolver, hosts_text, parse_resolver, resolver_of
from agent.pods.runtime.observed import Instance
from agent.pods.runtime.pod_group import (
    LevelNeeds,
    MakeGroup,
    PodLimits,
    WantedGroup,
    plan_group,
    pod_limits,
    wanted_group,
    wanted_levels,
)
from agent.pods.runtime.slices import slices_in, slices_of, units_of, whole_percents
from agent.pods.runtime.volume_plan import is_ours_alone, mount_source, plan_updates, plan_volumes
from agent.pods.settings import PodSettings
from agent.wire.cri import runtime_v1_pb2 as pb

log = structlog.get_logger(plane="pods")

HOSTS = "/etc/hosts"
LONGEST_PATH = 4096
PROPAGATIONS = {
    "None": pb.PROPAGATION_PRIVATE,
    "HostToContainer": pb.PROPAGATION_HOST_TO_CONTAINER,
    "Bidirectional": pb.PROPAGATION_BIDIRECTIONAL,
}


class ContainerSetup:
    """For one pod. Methods raise ConfigProblem for what the manifest asks and cannot have, and OSError."""

    def __init__(self, run: LivePod) -> None:
        self._run = run
        self._context = run.context
        self._told: set[str] = set()
        self._first_id = 0
        self._limits: tuple[PodSpec, PodSettings, KepdAnnotations, PodLimits] | None = None

    @property
    def _node(self) -> NodeShape:
        is_systemd = self._run.features.uses_systemd
        return NodeShape(settings=self._context.settings(), uses_systemd=is_systemd, first_id=self._first_id)

    async def prepare(self) -> None:
        run = self._run
        if run.pod.spec.volumes:
            await self._context.claims.hold(run.pod)
            volumes = plan_volumes(run.pod, self._context.sources(), run.facts)
            await asyncio.to_thread(self._context.files.prepare, run.pod.uid, volumes, self._context.written)

    async def update(self) -> list[str]:
        """Content of volumes that are mounted already; one that cannot be had stays as it is and stops no other."""
        run = self._run
        updates = plan_updates(run.pod, self._context.sources(), run.facts)
        problems = list(updates.problems)
        for volume in updates.volumes:
            try:
                await asyncio.to_thread(self._context.files.prepare, run.pod.uid, (volume,))
            except OSError as error:
                problems.append(f'volume "{volume.name}" keeps its content: {error}')
        return problems

    async def ground(self) -> None:
        """What has to be there before a sandbox: its log directory and its group."""
        await self.learn()
        run = self._run
        run.memory = replace(run.memory, group=self.limits_of(run.pod), resources=run.pod.spec.resources)
        await asyncio.to_thread(self._ground)
        await self.limit()

    async def learn(self) -> None:
        """What the runtime can do; a pod that was found running has not asked yet."""
        self._run.features = await self._context.runtime.features()

    def _ground(self) -> None:
        run, context = self._run, self._context
        check_support(run.pod, run.features)
        self._take_ids()
        context.files.logs.make(run.log_directory)

    def _take_ids(self) -> None:
        """The same ones at every start."""
        if not self._run.pod.spec.host_users:
            self._first_id = self._context.files.ranges.of(self._run.pod.uid)

    def check_image_volume(self, volume: Volume) -> None:
        if not self._run.features.has_image_volumes:
            text = f'volume "{volume.name}" is an image, which {self._run.features.label} cannot mount; '
            raise ConfigProblem(text + "containerd 2.1 and CRI-O 1.31 can")

    def limits_of(self, pod: PodSpec) -> PodLimits:
        """Asked for at each turn, and worked out anew where something that they are made of is another."""
        settings, annotated = self._context.settings(), self._run.annotated
        known = self._limits
        if known is None or known[0] is not pod or known[1] is not settings or known[2] is not annotated:
            most_pids, groups, bursts_us = (
                settings.pods.pod_pids_limit,
                settings.facts.groups,
                annotated.bursts_us.values(),
            )
            limits = pod_limits(pod, most_pids, groups, bursts_us, is_protected=settings.pods.memory_qos)
            known = self._limits = (pod, settings, annotated, limits)
        return known[3]

    @property
    def _level_needs(self) -> LevelNeeds:
        asked, is_protected = self._context.requests, self._context.settings().pods.memory_qos
        return LevelNeeds(
            burstable_milli=asked.burstable_milli,
            burstable_bytes=asked.burstable_bytes if is_protected else None,
            all_bytes=asked.all_bytes if is_protected else None,
        )

    async def limit(self, limits: PodLimits | None = None) -> None:
        """The group of the pod as a whole; without `limits` as it was before. A pod that has limits does not
        run without them; shares alone are no reason not to run."""
        await self.learn()
        run, groups = self._run, self._context.groups
        limits = limits or run.memory.group or self.limits_of(run.pod)
        if run.features.uses_systemd:
            limits = whole_percents(limits)
        shape = self._context.settings().facts.groups
        wanted = wanted_group(limits, self.cgroup, shape, self._level_needs)
        try:
            if run.features.uses_systemd:
                await self._ask_systemd(wanted)
            await asyncio.to_thread(_write, groups, wanted)
        except OSError as error:
            if limits.is_binding:
                text = f"the limits of the pod cannot be set: {error}"
                raise ConfigProblem(text, "FailedCreatePodContainer") from error
            if "group" not in self._told:
                self._told.add("group")
                run.tell("FailedCreatePodContainer", f"the pod has no share of its own: {error}", is_warning=True)

    async def _ask_systemd(self, wanted: WantedGroup) -> None:
        """Also for what stands already, if systemd does not know of it from this process."""
        groups = self._context.groups
        there = await asyncio.to_thread(groups.read, wanted.paths)
        others = units_of(plan_group(wanted, there))
        for one in slices_of(wanted):
            await self._context.slices.hold(one.unit, one.properties, anew=one.unit in others)

    async def regain(self) -> None:
        """Of a pod that was found running: what an earlier kepd wrote into files, systemd does not know of."""
        if slices_in([self.cgroup]):
            with suppress(ConfigProblem):
                await self.limit()

    async def release_groups(self) -> None:
        """A slice that systemd does not end is empty all the same; it is no reason to keep a pod."""
        for unit in slices_in(self.cgroups):
            try:
                await self._context.slices.stop(unit)
            except OSError as error:
                log.warning("slice_not_stopped", pod=self._run.pod.key, slice=unit, error=str(error))
        for group in self.cgroups:
            await asyncio.to_thread(self._context.groups.remove, group)

    def sandbox_config(self, attempt: int) -> pb.PodSandboxConfig:
        run = self._run
        seen = _rfc3339(run.memory.first_seen_wall_s)
        return sandbox_config(run.pod, self._node, self._resolver(), attempt, seen, group=self.cgroup)

    def _resolver(self) -> Resolver:
        settings = self._context.settings()
        node = parse_resolver(_text_of(Path(settings.pods.resolv_conf)))
        found = resolver_of(self._run.pod, node, settings.cluster_dns, settings.pods.cluster_domain)
        for reason, text in found.warnings:
            if reason not in self._told:
                self._told.add(reason)
                self._run.tell(reason, text, is_warning=True)
        return found

    async def made(self, container: ContainerSpec, image: pb.Image, attempt: int) -> Made:
        run, context = self._run, self._context
        await self.learn()
        devices = await self._devices(container)
        facts = self._facts()
        room, place = ProgramRoom(), run.pod.path_of(container)
        environment = resolve_environment(run.pod, container, context.sources(), facts, room)
        values = dict(environment)
        command = expand_all(container.fields.command, values, f"{place}.command", room)
        args = expand_all(container.fields.args, values, f"{place}.args", room)
        # One visit to the disk for everything: each costs a millisecond on the way to a running container.
        attempt, mounts = await asyncio.to_thread(self._on_disk, container, values, attempt)
        has_uid = image.HasField("uid") if "uid" in image.DESCRIPTOR.fields_by_name else False
        return Made(
            attempt=attempt,
            image_ref=image.id,
            image_user=image.username,
            image_uid=image.uid.value if has_uid else None,
            environment=environment,
            command=command,
            args=args,
            mounts=mounts,
            devices=devices,
        )

    async def _devices(self, container: ContainerSpec) -> ContainerDevices:
        run = self._run
        try:
            return await self._context.devices.edits(run.pod, container, run.features)
        except DevicesNotReady as error:
            raise ConfigProblem(str(error), error.reason) from error

    def _on_disk(self, container: ContainerSpec, values: dict[str, str], attempt: int) -> tuple[int, list[pb.Mount]]:
        """Log directory, volumes and what is mounted; blocking."""
        run, files = self._run, self._context.files
        if not attempt:
            attempt = files.logs.next_attempt(run.log_directory, container.name)
        files.logs.make(run.log_directory, container.name)
        self._take_ids()
        if run.pod.spec.volumes:
            planned = plan_volumes(run.pod, self._context.sources(), run.facts)
            files.prepare(run.pod.uid, planned, self._context.written)
        return attempt, self._mounts(container, values)

    def _facts(self) -> PodFacts:
        run = self._run
        facts = run.facts
        places = {
            one.name: mount_source(run.pod, one.name) for one in run.pod.spec.volumes if one.empty_dir is not None
        }

        def read_file(volume: str, path: str) -> bytes | None:
            place = places.get(volume)
            return self._context.files.read_below(run.pod.uid, place, path) if place is not None else None

        return replace(facts, read_file=read_file)

    def container_config(self, container: ContainerSpec, made: Made) -> pb.ContainerConfig:
        return container_config(self._run.pod, container, made, self._node)

    @property
    def cgroup(self) -> str:
        """Where its containers are counted: where its sandbox is, whatever the manifest says by now."""
        active = self._run.seen.active
        return (active.group if active is not None else "") or cgroup_of(self._run.pod, self._node)

    @property
    def cgroups(self) -> set[str]:
        return {self.cgroup, *(one.group for one in self._run.seen.sandboxes if one.group)}

    async def level(self) -> None:
        """Without this pod those that are left are worth less; a group that is gone or refuses is no loss."""
        context = self._context
        wanted = wanted_levels(self.cgroup, context.settings().facts.groups, self._level_needs)
        with suppress(OSError):
            there = await asyncio.to_thread(context.groups.read, wanted.paths)
            is_there = WantedGroup(tuple(step for step in wanted.steps if there.get(step.path) is not None))
            if slices_in([self.cgroup]):
                await self._ask_systemd(is_there)
            await asyncio.to_thread(_write, context.groups, is_there)

    def resources_of(self, container: ContainerSpec) -> pb.LinuxContainerResources:
        return container_resources(self._run.pod, container, container.fields.resources, self._node)

    def _mounts(self, container: ContainerSpec, values: dict[str, str]) -> list[pb.Mount]:
        run, files = self._run, self._context.files
        fields = container.fields
        found = [self._mount(container, place, mount, values) for place, mount in enumerate(fields.volume_mounts)]
        taken = {mount.container_path for mount in found}
        if HOSTS not in taken:
            host_file = _text_of(Path(HOSTS)) if run.pod.spec.host_network else ""
            text = hosts_text(run.pod, run.facts.pod_ips, self._context.settings().pods.cluster_domain, host_file)
            path = files.write_hosts(run.pod.uid, text)
            found.append(pb.Mount(container_path=HOSTS, host_path=str(path)))
        if fields.termination_message_path and fields.termination_message_path not in taken:
            words = files.message_file(run.pod.uid, container.name)
            found.append(pb.Mount(container_path=fields.termination_message_path, host_path=str(words)))
        if self._first_id:
            for one in found:
                one.uidMappings.append(id_mapping(self._first_id))
                one.gidMappings.append(id_mapping(self._first_id))
        return found

    def _mount(self, container: ContainerSpec, index: int, mount: VolumeMount, values: dict[str, str]) -> pb.Mount:
        run = self._run
        # The runtime takes whole paths only.
        where = mount.mount_path if mount.mount_path.startswith("/") else f"/{mount.mount_path}"
        volume = next((one for one in run.pod.spec.volumes if one.name == mount.name), None)
        path = f"{run.pod.path_of(container)}.volumeMounts[{index}].subPathExpr"
        sub_path = mount.sub_path or _expanded(mount.sub_path_expr, values, path)
        if volume is not None and volume.image is not None:
            return pb.Mount(
                container_path=where,
                readonly=True,
                image=pb.ImageSpec(
                    image=run.volume_images.get(volume.name, volume.image.reference),
                    user_specified_image=volume.image.reference,
                ),
                image_sub_path=sub_path,
            )
        number = f"{container.name}-{index}"
        try:
            # What is bound passes no mounts on.
            written = self._context.written if mount.mount_propagation == "None" else ()
            place = mount_source(run.pod, mount.name, run.facts)
            source = self._context.files.source(run.pod.uid, place, sub_path, number, written)
        except (OSError, ConfigProblem) as error:
            head = f'failed to prepare subPath for volumeMount "{mount.name}" of container "{container.name}"'
            raise ConfigProblem(f"{head}: {error}") from error
        return pb.Mount(
            container_path=where,
            host_path=str(source),
            readonly=mount.read_only or is_ours_alone(run.pod, mount.name),
            propagation=PROPAGATIONS[mount.mount_propagation],
            recursive_read_only=self._is_recursive(mount),
        )

    def _is_recursive(self, mount: VolumeMount) -> bool:
        """What a runtime cannot do is an error only where the manifest insists."""
        handler = self._run.pod.spec.runtime_class_name
        can = handler in self._run.features.recursive_read_only
        if mount.recursive_read_only == "Enabled" and not can:
            text = (
                f'volumeMount "{mount.name}": recursiveReadOnly Enabled is not supported by {self._run.features.label}'
            )
            raise ConfigProblem(text + " do; IfPossible makes it read-only as far as it goes")
        return can and mount.recursive_read_only in ("Enabled", "IfPossible")

    def link_log(self, instance: Instance) -> None:
        run = self._run
        log_file = run.log_directory / instance.name / f"{instance.attempt}.log"
        try:
            self._context.files.logs.link(run.pod.namespace, run.pod.name, instance.name, instance.id, log_file)
        except OSError as error:
            run.tell("FailedSync", f"log link of {instance.name}: {error.strerror}", is_warning=True)


def _write(groups: Groups, wanted: WantedGroup) -> None:
    """What differs; blocking. Raises OSError that names the step."""
    for step in plan_group(wanted, groups.read(wanted.paths)).steps:
        try:
            if isinstance(step, MakeGroup):
                groups.make(step.path)
            else:
                groups.write(step.path, step.value)
        except OSError as error:
            raise OSError(f"{step}: {error.strerror or error}") from error


def _expanded(text: str, values: dict[str, str], path: str) -> str:
    """A variable that is not there or empty is an error, not an empty path."""
    missing = sorted({name for name in referenced(text) if not values.get(name)})
    if missing:
        raise ConfigProblem(f"subPathExpr {text!r}: missing value for {', '.join(missing)}")
    return expand(text, values, path, LONGEST_PATH)


def _text_of(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


def _rfc3339(wall_s: float) -> str:
    if not wall_s:
        return ""
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")
