# SPDX-License-Identifier: Apache-2.0
"""A pod with hooks and probes: it starts, its sidecar fails and is restarted, it is evicted, and it ends."""

import asyncio
from pathlib import Path

from agent.api.metrics import Metrics
from agent.model.nodes.drain import NodeDrain
from agent.model.nodes.use import Amount, PodUse
from agent.pods.attach.kubelet_names import kubelet_families
from agent.pods.plan.evict import EvictionRules, Threshold
from agent.pods.run.checkpoints.creating import CheckpointMaker
from agent.pods.run.draining import Drainer
from tests.fakes.manifests import FakeManifestDirectory
from tests.lives.figures import Watched
from tests.pods.plane import FakeNode, Slow, manifest, running

POD = b"""
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  initContainers:
  - name: net
    image: i
    restartPolicy: Always
    livenessProbe: {tcpSocket: {port: 81}, periodSeconds: 1, failureThreshold: 1}
  containers:
  - name: app
    image: i
    lifecycle: {postStart: {exec: {command: [begin]}}, preStop: {exec: {command: [drain]}}}
"""


class Checkpoints(Slow):
    async def checkpoint_container(self, container_id: str, location: str) -> None:
        await asyncio.to_thread(Path(location).write_bytes, container_id.encode())


async def pods_life(folder: Path) -> set[str]:
    """What moved; whether the plane is ready is told by the daemon's own figures."""
    manifests = FakeManifestDirectory({})
    short = Threshold(signal="memory.available", quantity=100)
    node, rules = FakeNode(), EvictionRules(thresholds=(short,), period_s=0.05, transition_s=0.1)
    async with running(Checkpoints(), manifests, folder / "logs", node=node, eviction=rules) as plane:
        versions = [0]
        watched = Watched(
            lambda: (
                *plane.metrics.families(),
                *kubelet_families(plane.metrics, plane.runner.pods.items.values(), versions[-1]),
            )
        )
        versions.append(2)
        page = Metrics("", plane.board.lines)
        daemon = Watched(lambda: (one for one in page.collect() if one.name == "kepd_plane_ready"))
        await plane.until_ready()
        daemon.look()
        plane.probe_client.answers[81] = 200
        manifests.put("/m/f.yaml", POD)
        await plane.until_phases(web="Running")
        watched.look()
        keeper = plane.runner.keepers[plane.pod().uid]
        await Drainer(plane.runner, keeper.run.context).admit(NodeDrain(by="root", began_at_s=0.0, reason="disk"))
        watched.look()
        await plane.runner.uncordon()
        app = next(one for one in keeper.run.seen.instances if one.name == "app")
        await CheckpointMaker(keeper.run.context, node).make(keeper.run, "app", app.id)
        watched.look()
        del plane.probe_client.answers[81]
        await plane.until(lambda: plane.pod().containers[0].restart_count >= 1, "the sidecar is restarted")
        plane.probe_client.answers[81] = 200
        manifests.put("/m/bad.yaml", manifest("bad", "nowhere"))
        await plane.until(lambda: any(plane.metrics.start_errors), "a container without an image")
        watched.look()
        manifests.put("/m/bad.yaml", None)
        await plane.until(lambda: "bad-n" not in plane.phases, "it is gone")
        node.uses = {one: PodUse(memory=1 << 30) for one in plane.runner.keepers}
        node.amounts["memory.available"] = Amount(99, 1000)
        await plane.until_phases(web="Failed")
        watched.look()
        node.amounts["memory.available"] = Amount(900, 1000)
        await plane.until(lambda: not plane.runner.evictor.conditions, "the node has room again")
        manifests.put("/m/f.yaml", None)
        await plane.until(lambda: not plane.phases, "gone")
        watched.look()
    return watched.moved | daemon.moved
