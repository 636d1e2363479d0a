# SPDX-License-Identifier: Apache-2.0
"""CL-12: `kepctl wait --for`."""

import asyncio
import json
from pathlib import Path

import pytest

from agent.cli.commands.objects.wait import _path_aim
from agent.cli.session import CommandFailed
from agent.model.pods.state import Condition, ContainerState, PodState
from agent.pods.view.objects import pod_object
from tests.cli.pod_node import pod_node
from tests.pods.plane import Slow, manifest

WEB = {"/m/a.yaml": manifest("web", "i", more=", labels: {app: web}")}


@pytest.mark.parametrize(
    "words",
    [
        "wait pod/web --for=condition=Ready",
        "wait pod web --for condition=ready=true",
        "wait web-n --for=jsonpath='{.status.phase}'=Running",
        "wait -l app=web --for=jsonpath='{.status.podIP}'",
    ],
)
async def test_wait_returns_at_once_if_already_true(tmp_path: Path, short_path: Path, words: str) -> None:
    async with pod_node(tmp_path, short_path, WEB) as node:
        await node.plane.until(lambda: node.plane.phases and node.plane.pod().status == "Running", "it runs")
        await node.plane.until(lambda: any(one.is_true for one in node.plane.pod().conditions), "conditions")
        done = await node.ctl(words)

    assert (done.exit_code, done.output) == (0, "pod/default/web-n condition met\n"), done.exception


async def test_a_kind_is_meant_whatever_its_case(tmp_path: Path, short_path: Path) -> None:
    async with pod_node(tmp_path, short_path, WEB) as node:
        await node.plane.until_phases(web="Running")
        waited = await node.ctl("wait Pod web --for=jsonpath={.status.phase}=Running")
        described = await node.ctl("describe Pod/web")
        events = await node.ctl("events --for Pod/web")
        explained = await node.ctl("explain pod web -o json")

    assert (waited.exit_code, waited.output) == (0, "pod/default/web-n condition met\n"), waited.exception
    assert described.output.splitlines()[0].split() == ["Name:", "web-n"]
    assert events.exit_code == 0, events.exception
    assert json.loads(explained.output)["phase"] == "Running"


async def test_what_does_not_come_ends_with_its_own_exit_code(tmp_path: Path, short_path: Path) -> None:
    async with pod_node(tmp_path, short_path, WEB) as node:
        await node.plane.until_phases(web="Running")
        done = await node.ctl("wait web --for=condition=DisruptionTarget=false --timeout 300ms")

    assert isinstance(done.exception, CommandFailed)
    assert done.exception.exit_code == 7
    assert "does not meet condition=DisruptionTarget=false; Running" in str(done.exception)


async def test_it_waits_until_the_pod_is_ready_and_until_it_is_gone(tmp_path: Path, short_path: Path) -> None:
    cri = Slow()
    cri.slow_images.add("i")
    async with pod_node(tmp_path, short_path, WEB, cri) as node:
        await node.plane.until(lambda: cri.pulling["i"], "a pull")
        waiting = asyncio.create_task(node.ctl("wait web --for=condition=Ready"))
        await node.plane.until(lambda: node.plane.runner.pods._followers, "it is watched")
        cri.may_pull.set()
        ready = await waiting
        await node.plane.until(lambda: not node.plane.runner.pods._followers, "nothing watches")
        waiting = asyncio.create_task(node.ctl("wait pod/web --for=delete"))
        await node.plane.until(lambda: node.plane.runner.pods._followers, "it is watched")
        node.plane.manifests.put("/m/a.yaml", None)
        gone = await waiting
        again = await node.ctl("wait pod/web --for=delete")
        never = await node.ctl("wait pod/web --for=condition=Ready")

    assert ready.output == "pod/default/web-n condition met\n"
    assert gone.output == "pod/default/web-n deleted\n"
    assert (again.exit_code, again.output) == (0, "")
    assert isinstance(never.exception, CommandFailed)
    assert never.exception.exit_code == 3


async def test_a_pod_that_goes_meets_no_condition(tmp_path: Path, short_path: Path) -> None:
    async with pod_node(tmp_path, short_path, WEB) as node:
        await node.plane.until_phases(web="Running")
        waiting = asyncio.create_task(node.ctl("wait web --for=jsonpath={.status.phase}=Failed"))
        await node.plane.until(lambda: node.plane.runner.pods._followers, "it is watched")
        node.plane.manifests.put("/m/a.yaml", None)
        done = await waiting

    assert "is gone before it met the condition" in str(done.exception)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("wait --for=delete", "expected either PODs or -l LABELS"),
        ("wait web --for=ready", "no aim; expected condition=Ready"),
        ("wait web --for=condition=Ready=maybe", "is not true or false"),
        ("wait web --for=jsonpath=.status", "is not valid"),
        ("wait web --for=jsonpath={.status}x", "is not valid"),
    ],
)
async def test_what_is_wrong_is_said(tmp_path: Path, short_path: Path, words: str, text: str) -> None:
    async with pod_node(tmp_path, short_path, {}) as node:
        done = await node.ctl(words)

    assert isinstance(done.exception, CommandFailed)
    assert (done.exception.exit_code, text in str(done.exception)) == (2, True)


@pytest.mark.parametrize(
    ("aim", "holds"),
    [
        ("{.status.conditions[?(@.type=='Ready')].status}=True", True),
        ("{.status.containerStatuses[0].restartCount}=2", True),
        ("{.status.containerStatuses[*].name}=app", True),
        ("{.metadata.labels.app}=web", True),
        ("{.status.phase}=Failed", False),
        ("{.status.nothing}", False),
    ],
)
def test_paths_are_those_of_kubernetes(aim: str, holds: bool) -> None:
    app = ContainerState(name="app", image="i", restart_count=2)
    ready = Condition(type="Ready", is_true=True)
    pod = PodState(
        namespace="default", name="web", uid="u", phase="Running", labels=(("app", "web"),), containers=(app,),
        conditions=(ready,),
    )  # fmt: skip

    assert _path_aim(aim)(pod_object(pod)) is holds
