# SPDX-License-Identifier: Apache-2.0
"""FX-5: whatever a daemon says, what kepctl writes to a terminal cannot steer it."""

import io
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from agent.cli.terminal import CleanText, clean
from agent.wire.kepd.v1 import (
    cri_proxy_pb2,
    image_pb2,
    node_pb2,
    object_pb2,
    pod_pb2,
    service_proxy_pb2,
    topology_pb2,
)
from tests.host.process import PROGRAMS

# Title, clear, cursor, answer-back, the one-byte form of CSI, a return over what stands there, and a reversed order.
HOSTILE = "a\x1b]0;owned\x07\x1b[2J\x1b[H\x05\x9b2J\rover\u202egnp.exe\x7f\b[red]b"
STATUS = {
    "name": HOSTILE, "ready": True, "started": True, "restartCount": 1, "image": HOSTILE, "imageID": HOSTILE,
    "containerID": HOSTILE, "state": {"waiting": {"reason": HOSTILE, "message": HOSTILE}}, "lastState": {},
}  # fmt: skip
PORT = {"name": HOSTILE, "port": 1, "nodePort": 1, "protocol": HOSTILE, "family": HOSTILE, "used": 1, "total": 1,
        "verdict": HOSTILE, "mode": HOSTILE}  # fmt: skip
# What a pod, a Service and an event have together.
OBJECT = {
    "kind": HOSTILE, "type": HOSTILE, "reason": HOSTILE, "message": HOSTILE, "count": 2, "lastTimestamp": None,
    "firstTimestamp": None,
    "metadata": {"name": "web", "namespace": "default", "uid": HOSTILE, "labels": {HOSTILE: HOSTILE}},
    "spec": {"containers": [{"name": HOSTILE}]},
    "status": {
        "phase": HOSTILE, "message": HOSTILE, "podIP": HOSTILE, "containerStatuses": [STATUS] * 2, "state": "ready",
        "conditions": [{"type": HOSTILE, "status": HOSTILE, "reason": HOSTILE, "message": HOSTILE}],
    },
    "kepd": {
        "status": HOSTILE, "cause": HOSTILE, "manifestName": HOSTILE, "ports": [PORT] * 2, "clusterIps": [HOSTILE],
        "plane": HOSTILE, "objectName": HOSTILE, "objectKind": HOSTILE, "namespace": HOSTILE, "container": HOSTILE,
        "isProgrammed": True,
    },
}  # fmt: skip
MODULES = (cri_proxy_pb2, image_pb2, node_pb2, object_pb2, pod_pb2, service_proxy_pb2, topology_pb2)
# Colours, and what a progress bar does with its own lines.
OURS = re.compile(rb"\x1b\[(\d+(;\d+)*)?m|\x1b\[\?25[lh]|\x1b\[1A|\x1b\[2K")
DEEPEST = 5


def filled(kind: type[Message], depth: int = 0) -> Message:
    """Every text of a message is hostile, every list has two entries, every number is 1."""
    made = kind()
    for field in kind.DESCRIPTOR.fields:
        if field.name in ("next_page_token", "options"):
            continue
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            fill_inside(made, field, depth)
        else:
            value = scalar(field)
            if field.is_repeated:
                getattr(made, field.name).extend([value] * (1 if field.name == "objects" else 2))
            elif value is not None:
                setattr(made, field.name, value)
    return made


def fill_inside(made: Message, field: FieldDescriptor, depth: int) -> None:
    inner = field.message_type
    if depth >= DEEPEST or inner.full_name == "google.protobuf.Struct":
        return
    if inner.GetOptions().map_entry:
        value = inner.fields_by_name["value"]
        if (
            value.type != FieldDescriptor.TYPE_MESSAGE
            and inner.fields_by_name["key"].type == FieldDescriptor.TYPE_STRING
        ):
            getattr(made, field.name)[HOSTILE] = scalar(value)
        return
    one = filled(GetMessageClass(inner), depth + 1)
    if field.is_repeated:
        getattr(made, field.name).extend([one, one])
        for name, value in (("namespace", "default"), ("name", "web")):
            # The second is what commands ask for by name.
            if name in inner.fields_by_name and inner.fields_by_name[name].type == FieldDescriptor.TYPE_STRING:
                setattr(getattr(made, field.name)[1], name, value)
    else:
        getattr(made, field.name).CopyFrom(one)


def scalar(field: FieldDescriptor) -> object:
    if field.type == FieldDescriptor.TYPE_STRING:
        return HOSTILE
    if field.type == FieldDescriptor.TYPE_BYTES and field.name in ("object", "objects"):
        return json.dumps(OBJECT).encode()
    if field.type == FieldDescriptor.TYPE_BYTES:
        return HOSTILE.encode() + b"\n"
    if field.type == FieldDescriptor.TYPE_BOOL:
        return True
    return 1.0 if field.type in (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT) else 1


class Hostile(grpc.GenericRpcHandler):
    """Answers every method there is."""

    def __init__(self, *, is_refusing: bool = False) -> None:
        services = [one for module in MODULES for one in module.DESCRIPTOR.services_by_name.values()]
        self.methods = {f"/{one.full_name}/{method.name}": method for one in services for method in one.methods}
        self.is_refusing = is_refusing

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        method: MethodDescriptor = self.methods[details.method]

        def once(_request: bytes, context: grpc.ServicerContext) -> bytes:
            if self.is_refusing:
                context.abort(grpc.StatusCode.INTERNAL, HOSTILE)
            return filled(GetMessageClass(method.output_type)).SerializeToString()

        def stream(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
            yield once(request, context)

        def gathered(requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
            return once(b"".join(requests), context)

        if method.client_streaming:
            return grpc.stream_unary_rpc_method_handler(gathered)
        if method.server_streaming:
            return grpc.unary_stream_rpc_method_handler(stream)
        return grpc.unary_unary_rpc_method_handler(once)


@pytest.fixture
def serve(short_path: Path) -> Iterator[object]:
    servers = []

    def start(*, is_refusing: bool = False) -> Path:
        server = grpc.server(ThreadPoolExecutor(4))
        server.add_generic_rpc_handlers((Hostile(is_refusing=is_refusing),))
        path = short_path / "kepd.sock"
        server.add_insecure_port(f"unix:{path}")
        server.start()
        servers.append(server)
        return path

    yield start
    for server in servers:
        server.stop(0).wait()


def on_a_terminal(*words: str) -> bytes:
    """What a terminal gets."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "200", "LINES": "50"}
    command = [sys.executable, str(PROGRAMS / "kepctl"), *words]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        got = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:
                break
            if not part:
                break
            got += part
        process.wait(30)
    os.close(ours)
    return got


def controls(shown: bytes) -> list[str]:
    """Signs that steer a terminal, without our own colours and the ends of lines."""
    text = OURS.sub(b"", shown).replace(b"\r\n", b"\n").decode()
    return [repr(sign) for sign in text if not sign.isprintable() and sign not in "\n\t"]


KINDS = (
    "pods",
    "containers",
    "events",
    "images",
    "pulls",
    "mirrors",
    "services",
    "endpoints",
    "planes",
    "nodes",
    "proxy",
)
LISTS = [("get", kind, "-o", output) for kind in KINDS for output in ("table", "wide", "json", "yaml", "name")]
COMMANDS = [
    ("status",), ("doctor",), ("health",), ("version", "--daemon"), ("config", "show"), ("describe", "pod", "web"),
    ("describe", "service", "web"), ("events",), ("events", "--for", "pod/web"), ("describe", "node"),
    ("explain", "pod", "web"), ("explain", "pull", "web"), ("explain", "route", "web"), ("explain", "hints", "web"),
    ("explain", "spread", "web"), ("rules",), ("diff",), ("trace", "1.2.3.4", "5.6.7.8:80"), ("timeline", "web"),
    ("inspect", "image", "web"),
    ("gc",), ("prefetch", "web"), ("drain",), ("uncordon",), ("config", "reload"), ("delete", "web"),
    ("restart", "web"), ("retry", "web"), ("cancel", "web"), ("api",), ("api", "NodeService/GetNode"),
]  # fmt: skip


@pytest.mark.parametrize("words", [*COMMANDS, *(one for one in LISTS if one[1] in ("pods", "events", "pulls"))])
def test_no_command_writes_what_a_terminal_obeys(serve: object, words: tuple[str, ...]) -> None:
    path = serve()  # type: ignore[operator]

    shown = on_a_terminal("--endpoint", str(path), "--timeout", "5", "--color", "always", *words)
    assert shown
    assert controls(shown) == []


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("pods", "events", "pulls")])
def test_no_list_writes_what_a_terminal_obeys(serve: object, kind: str) -> None:
    path = serve()  # type: ignore[operator]

    for output in ("table", "json"):
        assert controls(on_a_terminal("--endpoint", str(path), "get", kind, "-o", output)) == []


def test_nor_do_refusals_and_progress(serve: object) -> None:
    path = serve(is_refusing=True)  # type: ignore[operator]

    refusal = on_a_terminal("--endpoint", str(path), "status")
    assert b"kepctl: a?]0;owned" in refusal
    assert controls(refusal) == []


def test_a_bar_of_a_pull_has_no_signs_but_its_own(serve: object) -> None:
    path = serve()  # type: ignore[operator]
    shown = OURS.sub(b"", on_a_terminal("--endpoint", str(path), "pull", "web"))

    assert b"\x1b" not in shown
    assert b"\x07" not in shown
    assert b"\rover" not in shown


def test_logs_are_passed_on_as_they_are(serve: object) -> None:
    path = serve()  # type: ignore[operator]

    assert HOSTILE.encode() in on_a_terminal("--endpoint", str(path), "logs", "web")


@given(st.text())
def test_whatever_is_written_is_clean(text: str) -> None:
    kept = io.StringIO(newline="")
    stream = CleanText(kept)
    stream.write(text)

    assert all(sign.isprintable() or sign in "\n\t" for sign in kept.getvalue())
    assert kept.getvalue() == clean(text)
    assert len(kept.getvalue()) == len(text)
