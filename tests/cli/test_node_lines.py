# SPDX-License-Identifier: Apache-2.0
"""Lines that name the node or a pod of it: a drain, what an end would look like, and a packet's way by names."""

from concurrent.futures import Future
from pathlib import Path

import pytest

from agent.cli.commands.pods import pods
from agent.cli.session import CommandFailed, Session
from agent.model.services.report import PortReport, ServiceReport
from agent.wire.kepd.v1 import node_pb2, pod_pb2
from tests.cli.node_in_process import running_node
from tests.cli.pod_node import pod_node
from tests.cli.test_grammar import fill, pod
from tests.pods.plane import manifest


async def test_a_drain_takes_the_own_nodes_name_and_says_each_pod(tmp_path: Path, short_path: Path) -> None:
    async with pod_node(tmp_path, short_path, {"/m/f.yaml": manifest("web", "i")}) as node:
        await node.plane.until_phases(web="Running")
        refused = await node.ctl("drain other")
        done = await node.ctl("drain n")

    assert isinstance(refused.exception, CommandFailed)
    assert str(refused.exception) == 'no node "other"; this daemon has n alone, which need not be said'
    assert (done.exit_code, done.output) == (0, "pod/default/web-n ended\n")


async def test_the_end_of_a_running_pod_is_planned_by_its_name(tmp_path: Path, short_path: Path) -> None:
    async with pod_node(tmp_path, short_path, {"/m/f.yaml": manifest("web", "i")}) as node:
        await node.plane.until_phases(web="Running")
        done = await node.ctl("plan stop web --grace 5")
        unnamed = await node.ctl("plan stop")

    assert done.exit_code == 0, done.exception
    assert "end of default/web-n within 5 s, if programs take 1 s to exit" in done.output
    assert "expected either a POD or -f" in str(unnamed.exception)


def test_a_drain_tells_each_pod_while_others_still_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drained: Future[pod_pb2.DrainNodeResponse] = Future()
    waits = iter((["default/a", "default/b"], ["default/b"]))

    def ask(*_: object) -> node_pb2.GetNodeResponse:
        found = next(waits, None)
        if found is None:
            drained.set_result(pod_pb2.DrainNodeResponse(pods=["default/a", "default/b"]))
        return node_pb2.GetNodeResponse(node=node_pb2.Node(drain=node_pb2.Drain(waits_for=found or ["default/b"])))

    monkeypatch.setattr(pods, "ask", ask)
    monkeypatch.setattr(pods, "LOOK_S", 0.001)
    told: set[str] = set()
    pods._tell_ends(Session(), drained, told)
    shown = capsys.readouterr()

    assert (shown.out, told) == ("pod/default/a ended\n", {"default/a"})
    assert shown.err == "pod/default/a ends\npod/default/b ends\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("web", "wob"), 'no service "wob"; did you mean "web"?'),
        (("web", "web:https"), "web:https: which port? It has 80/TCP, 80/TCP"),
        (("web",), "expected POD and SERVICE, or --from and --to"),
        (("web", "web", "--from", "10.0.0.1"), "expected POD and SERVICE, or --from and --to"),
    ],
)
def test_a_trace_says_which_name_is_missing(short_path: Path, words: tuple[str, ...], says: str) -> None:
    ports = tuple(
        PortReport(
            family=family, name="http", protocol="TCP", port=80, node_port=0, total=1, used=1, mode="", verdict=""
        )
        for family in ("IPv4", "IPv6")
    )
    with running_node(short_path, fill) as node:
        node.services.reports = [
            ServiceReport(namespace="default", name="web", type="ClusterIP", cluster_ips=("10.96.0.9",), ports=ports)
        ]
        node.put(pod("web"))
        done = node.ctl("trace", *words)

    assert says in done.stderr
    assert done.returncode in (2, 3)
