# SPDX-License-Identifier: Apache-2.0
"""Makes the sandbox of one pod, after what is left of earlier ones has been cleared away."""

import structlog
from msgspec.structs import replace

from agent.model.devices.problem import DevicesNotReady
from agent.pods.plan.admit import PREFIX, asked_by
from agent.pods.plan.start_steps import MakeSandbox
from agent.pods.run.handlers.interrupts import Interrupts, LaunchInterrupted
from agent.pods.run.one_pod.container_setup import ContainerSetup
from agent.pods.run.one_pod.pod_images import PodImages
from agent.pods.run.one_pod.run_state import FAILURES, LivePod, reason_of_error
from agent.pods.runtime.environment import ConfigProblem
from agent.pods.runtime.names import NAME_SERVERS
from agent.pods.runtime.observed import SeenPod, SeenSandbox, sandboxes_newest_first
from agent.wire.cri import runtime_v1_pb2 as pb

log = structlog.get_logger(plane="pods")

# What a pod may wait for long, and is news only when it changes.
NEWS_ONCE = ("ClaimUnallocatable", "ClaimError", "FailedPrepareDynamicResources")
UNEXPECTED = "UnexpectedAdmissionError"
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
NETWORK_PAUSE_S = 1.0
MEMORY_S = 120.0
NETWORK_WORDS = ("network is not ready", "cni plugin not initialized", "no network config found")


class SandboxMaker:
    def __init__(self, run: LivePod, setup: ContainerSetup, images: PodImages, interrupts: Interrupts) -> None:
        self._run = run
        self._context = run.context
        self._setup = setup
        self._images = images
        self._interrupts = interrupts

    async def make(self, step: MakeSandbox) -> None:
        """Ends what runs in the old sandbox before the new one is made."""
        run, context = self._run, self._context
        try:
            await self._clear_away(step)
        except FAILURES as error:
            self._failed("FailedKillPod", f"error killing pod: {reason_of_error(error)}")
            return
        try:
            await self._check_host_ports()
            # All that the pod claims, also what no container uses. What was begun goes with the pod's end.
            await self._interrupts.wait_for(context.devices.hold(run.pod))
            await self._setup.prepare()
            await self._setup.ground()
            config = self._setup.sandbox_config(step.attempt)
            began_s = context.clock.now_s()
            self._images.fetch_first()
            async with context.lane.place(context.settings().facts.cpus, context.clock):
                handler = context.handler_of(run.pod.spec.runtime_class_name)
                sandbox_id = await context.sandboxes.run_sandbox(config, handler)
            status = await context.sandboxes.sandbox_status(sandbox_id)
        except LaunchInterrupted:
            return
        except (ConfigProblem, DevicesNotReady) as error:
            self._failed(error.reason, str(error))
            return
        except FAILURES as error:
            text = reason_of_error(error)
            is_network = any(word in text.lower() for word in NETWORK_WORDS)
            self._failed("NetworkNotReady" if is_network else "FailedCreatePodSandBox", text)
            return
        made = SeenSandbox(
            id=sandbox_id,
            namespace=run.pod.namespace,
            name=run.pod.name,
            uid=run.pod.uid,
            attempt=step.attempt,
            hash=run.pod.hash,
            file=run.pod.file,
            group=config.linux.cgroup_parent,
            name_servers=config.annotations.get(NAME_SERVERS, ""),
            is_ready=status.state == pb.SANDBOX_READY,
            is_host_network=run.pod.spec.host_network,
            ip=status.network.ip,
            more_ips=tuple(one.ip for one in status.network.additional_ips),
            created_wall_s=status.created_at / 1e9,
        )
        others = [one for one in run.seen.sandboxes if one.id != sandbox_id]
        run.saw(SeenPod(sandboxes_newest_first((made, *others)), run.seen.instances))
        self._rest_before_the_next(context.clock.now_s())
        run.note("sandbox_made", text=status.network.ip, seconds=context.clock.now_s() - began_s)
        self._images.prefetch()

    async def _check_host_ports(self) -> None:
        """Without a plugin for them they would have no effect, and nothing would say so. Looked up each time,
        since the network of a node changes without a restart of anything. Raises ConfigProblem."""
        pod = self._run.pod
        ports = () if pod.spec.host_network else sorted(asked_by(pod).ports)
        if ports and await self._context.sandboxes.maps_host_ports() is False:
            text = f"{PREFIX}the pod network of this node cannot map host port {ports[0]}: no plugin of its CNI "
            raise ConfigProblem(text + "configuration, such as portmap, has the capability portMappings", UNEXPECTED)

    def _rest_before_the_next(self, now_s: float) -> None:
        """A pod that loses its sandbox again and again gets the next one later and later."""
        known = self._run.memory
        is_soon = bool(known.pause_s) and now_s <= known.retry_s + MEMORY_S
        pause_s = min(known.pause_s * 2, LONGEST_PAUSE_S) if is_soon else FIRST_PAUSE_S
        self._run.memory = replace(known, reason="", message="", pause_s=pause_s, retry_s=now_s + pause_s)

    async def _clear_away(self, step: MakeSandbox) -> None:
        run, context = self._run, self._context
        if step.replaces:
            run.tell("SandboxChanged", "Pod sandbox changed, it will be killed and re-created.")
        for sandbox_id in step.replaces:
            await context.stop_sandbox(sandbox_id)
        for instance_id in step.removes:
            await context.containers.remove_container(instance_id)
            run.drop(instance_id)
        sandboxes = [replace(one, is_ready=one.is_ready and one.id not in step.replaces) for one in run.seen.sandboxes]
        run.saw(SeenPod(tuple(sandboxes), run.seen.instances))

    def _failed(self, reason: str, text: str) -> None:
        run = self._run
        known = run.memory
        pause_s = min(known.pause_s * 2, LONGEST_PAUSE_S) if known.pause_s else FIRST_PAUSE_S
        pause_s = NETWORK_PAUSE_S if reason == "NetworkNotReady" else pause_s
        retry_s = self._context.clock.now_s() + pause_s
        run.memory = replace(known, reason=reason, message=text, pause_s=pause_s, retry_s=retry_s)
        if reason not in NEWS_ONCE or (known.reason, known.message) != (reason, text):
            run.tell(reason, text, is_warning=True)
        run.doubt()
        log.warning("pod_sandbox_failed", pod=run.pod.key, reason=reason, error=text)
