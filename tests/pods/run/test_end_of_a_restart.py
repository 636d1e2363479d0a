# SPDX-License-Identifier: Apache-2.0
"""A pod that is deleted while all of its containers are restarted."""

from pathlib import Path

from agent.pods.plan.work import StoppingPod
from tests.fakes.manifests import FakeManifestDirectory
from tests.pods.plane import News, Slow, running

RULES = "restartPolicyRules: [{action: RestartAllContainers, exitCodes: {operator: In, values: [7]}}]"
POD = f"""apiVersion: v1
kind: Pod
metadata: {{name: web}}
spec:
  restartPolicy: Never
  containers:
  - {{name: app, image: i, restartPolicy: Never, {RULES}}}
  - {{name: side, image: i}}
"""


async def test_an_end_waits_until_a_restart_of_all_containers_has_taken_them_away(tmp_path: Path) -> None:
    """FP-26, RST-05: otherwise a container that is being removed is given a hook and a second stop."""
    cri = Slow()
    given = FakeManifestDirectory({"/m/f.yaml": POD.encode()})
    async with running(cri, given, tmp_path, events=News(cri)) as plane:
        await plane.until_phases(web="Running")
        keeper = plane.runner.keeper("default", "web-n")
        assert keeper is not None
        cri.may_stop.clear()
        app = keeper.run.seen.newest("app")
        assert app is not None
        cri.exit(app.id, 7)
        await plane.until(lambda: cri.stopping == {"side"}, "the restart stops the other container")
        given.put("/m/f.yaml", None)
        await plane.until(lambda: StoppingPod() in keeper.run.tasks, "the end waits")
        await plane.rounds()

        assert keeper.run.memory.stop is None
        assert cri.stops == [("side", 2)]

        cri.may_stop.set()
        await plane.until(lambda: not plane.phases, "gone")

    assert cri.stops == [("side", 2)]
