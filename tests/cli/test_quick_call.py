# SPDX-License-Identifier: Apache-2.0
"""Reads without gRPC's library: the same answers, and nothing where gRPC would fail."""

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from msgspec.structs import replace

from agent.cli.client import OPTIONS, TOO_LATE
from agent.cli.quick.call import may_be_quick, quick_call
from agent.model.exit_codes import DEADLINE, NOT_FOUND, UNREACHABLE
from agent.model.pods.state import PodState
from agent.wire.kepd.v1 import (
    access_pb2,
    cri_proxy_pb2,
    image_pb2,
    node_pb2,
    object_pb2,
    pod_pb2,
    service_proxy_pb2,
    topology_pb2,
)  # fmt: skip
from tests.cli.node_in_process import Node, running_node
from tests.host.process import kepctl

LIST_PODS = "kepd.v1.ObjectService/List"
ALL_PODS = object_pb2.ListRequest(kind="pods").SerializeToString()
MOST = 16 << 20
POD = PodState(namespace="default", name="web", uid="u" * 900, phase="Running", created_at_s=1.0)
SETTINGS = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
GOAWAY = bytes((0, 0, 8, 7, 0, 0, 0, 0, 0)) + bytes(8)
RESET = bytes((0, 0, 4, 3, 0, 0, 0, 0, 1)) + bytes(4)
END_WITHOUT_MESSAGE = bytes((0, 0, 0, 1, 5, 0, 0, 0, 1))
HALF_A_MESSAGE = bytes((0, 0, 6, 0, 1, 0, 0, 0, 1)) + bytes((0, 0, 0, 0, 9, 1))
MODULES = (cri_proxy_pb2, image_pb2, node_pb2, object_pb2, pod_pb2, service_proxy_pb2, topology_pb2)


def fill(node: Node) -> None:
    for number in range(900):
        pod = replace(POD, name=f"web-{number}")
        node.pods.pods.put(pod.key, pod)


def test_an_answer_larger_than_any_first_window_is_that_of_grpc(short_path: Path) -> None:
    with running_node(short_path, fill) as node:
        quick = quick_call(str(node.path), LIST_PODS, ALL_PODS, 20.0, MOST)
        with grpc.insecure_channel(f"unix:{node.path}", options=OPTIONS) as channel:
            whole = channel.unary_unary(f"/{LIST_PODS}")(ALL_PODS, timeout=20.0)

    assert quick is not None
    assert len(quick) > 1 << 19
    assert object_pb2.ListResponse.FromString(quick) == object_pb2.ListResponse.FromString(whole)


@contextmanager
def answering(path: Path, answer: bytes | None) -> Iterator[str]:
    """Somebody at a socket who says that to whoever comes; None = nothing, and keeps the line."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        ended = threading.Event()

        def serve() -> None:
            line, _ = listener.accept()
            with line:
                if answer is None:
                    ended.wait(30.0)
                else:
                    line.sendall(answer)
                    line.shutdown(socket.SHUT_WR)
                    while line.recv(1 << 16):
                        pass

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield str(path)
        finally:
            ended.set()
            thread.join()


@pytest.mark.parametrize(
    "answer",
    [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", SETTINGS, SETTINGS + GOAWAY, SETTINGS + RESET,
     SETTINGS + END_WITHOUT_MESSAGE, SETTINGS + HALF_A_MESSAGE, SETTINGS[:5]],
)  # fmt: skip
def test_whatever_is_no_whole_answer_is_none(short_path: Path, answer: bytes) -> None:
    with answering(short_path / "s", answer) as path:
        assert quick_call(path, LIST_PODS, b"", 20.0, MOST) is None


def test_nobody_there_is_no_answer(short_path: Path) -> None:
    assert quick_call(str(short_path / "none"), LIST_PODS, b"", 1.0, MOST) is None


def test_who_does_not_answer_is_waited_for_once(short_path: Path) -> None:
    with answering(short_path / "s", None) as path:
        done = kepctl("--endpoint", path, "--timeout", "0.3", "get", "pods")

    assert (done.returncode, done.stderr) == (DEADLINE, f"kepctl: {TOO_LATE}\n")


def test_only_calls_that_change_nothing_are_made_so() -> None:
    """One that failed is made again."""
    methods = [
        (f"{service.full_name}/{method.name}", method.GetOptions().Extensions[access_pb2.level])
        for module in MODULES
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    ]
    quick = {name for name, _ in methods if may_be_quick(name)}

    assert LIST_PODS in quick
    assert {level for name, level in methods if name in quick} == {access_pb2.LEVEL_READ}


def test_a_list_needs_no_grpc_and_a_failure_is_told_by_it(short_path: Path) -> None:
    told = "import atexit, sys; atexit.register(lambda: print('grpc' in sys.modules, file=sys.stderr))"
    program = [sys.executable, "-c", f"{told}; from agent.cli.main import main; main()"]
    with running_node(short_path, fill) as node:

        def run(*words: str) -> subprocess.CompletedProcess[str]:
            command = [*program, "--endpoint", str(node.path), *words]
            return subprocess.run(command, capture_output=True, text=True, check=False)

        listed, missing = run("get", "pods", "-n", "default"), run("describe", "service", "none")
    away = run("get", "pods")

    assert (listed.returncode, listed.stderr) == (0, "False\n")
    assert listed.stdout.count("web-") == 900
    assert (missing.returncode, away.returncode) == (NOT_FOUND, UNREACHABLE)
    assert "nothing answers there" in away.stderr
