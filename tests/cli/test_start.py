# SPDX-License-Identifier: Apache-2.0
"""What is asked most often is answered without the libraries that the other commands need, and in the same words."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from msgspec.structs import replace

from agent.cli.quick.completion import asked
from agent.cli.quick.rows import ANSWER, decoded
from agent.cli.start import common_form
from agent.model.exit_codes import NOT_FOUND
from agent.model.pods.state import ContainerState, PodState
from agent.model.services.report import ServiceReport
from agent.wire.kepd.v1 import object_pb2
from tests.cli.node_in_process import Node, running_node

HEAVY = ("click", "grpc", "google", "ssl", "asyncio", "structlog", "yaml", "rich", "logging", "jinja2")
TOLD = f"import atexit, sys; atexit.register(lambda: print([m for m in {HEAVY} if m in sys.modules], file=sys.stderr))"
POD = PodState(namespace="default", name="web", uid="u-1", phase="Running", created_at_s=1.0, labels={"app": "web"})
FORMS = (
    "get pods", "pods", "get po -o wide", "get pod web-1 web-0", "get pods -n other", "get pods -o name -A",
    "get pods -l app=web", "get pods --namespace=other --output wide", "get planes", "get svc web",
)  # fmt: skip


def fill(node: Node) -> None:
    container = ContainerState(name="main", image="i", started_at_s=1.0, restart_count=300, is_ready=True)
    for number in range(3):
        pod = replace(POD, name=f"web-{number}", containers=(container,), message="näher")
        node.pods.pods.put(pod.key, pod)
    other = replace(POD, namespace="other", name="lone", labels={})
    node.pods.pods.put(other.key, other)
    node.services.reports = [ServiceReport(namespace="default", name="web", type="ClusterIP")]


def run(entry: str, *words: str, environment: Mapping[str, str] = os.environ) -> subprocess.CompletedProcess[str]:
    # On a busy machine Tab may give nothing; here it is looked at what comes.
    patient = "from agent.cli.quick import completion; completion.LIMIT_S = 30"
    code = f"{TOLD}; sys.argv[0] = 'kepctl'; {patient}; from agent.cli.{entry} import main; main()"
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=dict(environment))


@pytest.mark.parametrize("form", FORMS)
def test_a_common_form_says_what_the_usual_way_says(short_path: Path, form: str) -> None:
    with running_node(short_path, fill) as node:
        words = ["--endpoint", str(node.path), *form.split()]
        quick, usual = run("start", *words), run("main", *words)

    assert (quick.stdout, quick.returncode, quick.stderr) == (usual.stdout, 0, "[]\n")
    assert "google" in usual.stderr


@pytest.mark.parametrize(
    "form",
    ["get pods -w", "get pods -o json", "get pods pod/web", "get pods -n a -A", "get pods --timeout 3",
     "get", "get pods -n", "get pods -n a -n b", "pods --help", "get pods,services", "-- get pods"],
)  # fmt: skip
def test_all_else_goes_the_usual_way(form: str) -> None:
    assert common_form(form.split()) is None


def test_a_name_that_nobody_has_and_an_empty_node_are_told_as_ever(short_path: Path) -> None:
    with running_node(short_path, fill) as node:
        endpoint = ("--endpoint", str(node.path))
        quick, usual = (run(entry, *endpoint, "get", "pods", "wep-1") for entry in ("start", "main"))
        nowhere = run("start", *endpoint, "get", "pods", "-n", "nowhere")

    assert (quick.returncode, quick.stderr.splitlines()[0]) == (NOT_FOUND, usual.stderr.splitlines()[0])
    assert nowhere.stderr.startswith("no pods in namespace nowhere")


def tab(node: Node, line: str, shell: str = "bash") -> dict[str, str]:
    words = f"kepctl {line}".split(" ")
    place = words[-1] if shell == "fish" else str(len(words) - 1)
    return {
        "_KEPCTL_COMPLETE": f"{shell}_complete", "COMP_WORDS": " ".join(words), "COMP_CWORD": place,
        "KEPD_ENDPOINT": str(node.path), **os.environ,
    }  # fmt: skip


NAMES_ASKED = (
    ("get pods we", "web-0"), ("pods we", "web-0"), ("get pod/we", "pod/web-0"), ("get po web-0 ", "web-1"),
    ("get pods -n other ", "lone"), ("get pods ot", "other/lone"), ("logs we", "web-0"), ("logs -f web-0 ", "web-1"),
    ("exec we", "web-0"), ("exec -it we", "web-0"), ("describe pod we", "web-0"),
    ("describe pod/we", "pod/web-0"), ("get svc we", "web"), ("get svc/we", "svc/web"),
    ("delete pod we", "web-0"), ("delete pod web-0 we", "web-1"), ("logs nobody", ""),
)  # fmt: skip


@pytest.mark.parametrize(("line", "name"), NAMES_ASKED)
def test_the_names_of_pods_after_tab_need_none_of_them(short_path: Path, line: str, name: str) -> None:
    with running_node(short_path, fill) as node:
        quick, usual = (run(entry, environment=tab(node, line)) for entry in ("start", "main"))

    assert (quick.stdout, quick.stderr) == (usual.stdout, "[]\n")
    assert not name or f"plain,{name}" in quick.stdout.split()
    assert "click" in usual.stderr


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_them_in_their_form(short_path: Path, shell: str) -> None:
    with running_node(short_path, fill) as node:
        quick, usual = (run(entry, environment=tab(node, "logs we", shell)) for entry in ("start", "main"))

    assert (quick.stdout, quick.stderr) == (usual.stdout, "[]\n")
    assert "web-2" in quick.stdout


@pytest.mark.parametrize(
    "line",
    ["", "ge", "get ", "get po", "get pods -", "get pods -o ", "get pods -o wide we",
     "exec web-0 ", "exec -c a we", "describe pod web-0 ", "describe pod web-0 pod/", "delete we",
     "logs 'we", "logs w\\e", "explain pod we", "-- logs we", "rollout status we", "cp logs we"],
)  # fmt: skip
def test_all_else_after_tab_goes_the_usual_way(line: str) -> None:
    words = f"kepctl {line}"
    place = str(len(words.split(" ")) - 1)

    assert asked({"_KEPCTL_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": place}) is None


def assert_as_described(fields: Mapping[int, tuple[str, Any]], descriptor: Descriptor) -> None:
    for number, (name, kind) in fields.items():
        field = descriptor.fields_by_number[number]
        inner = kind[0] if isinstance(kind, list) else kind
        assert (field.name, field.is_repeated) == (name, isinstance(kind, list))
        if field.message_type is not None:
            assert_as_described(inner, field.message_type)
        else:
            assert inner == ("" if field.is_repeated else field.default_value)
            assert field.is_repeated or type(inner) is type(field.default_value)
            assert field.type not in (FieldDescriptor.TYPE_SINT32, FieldDescriptor.TYPE_SINT64)


def test_the_fields_are_those_of_the_interface() -> None:
    assert_as_described(ANSWER, object_pb2.TableResponse.DESCRIPTOR)


def test_half_a_message_is_none() -> None:
    row = object_pb2.TableRow(name="web", cells=["näher", ""])
    whole = object_pb2.TableResponse(rows=[row]).SerializeToString()

    assert decoded(whole, ANSWER).rows[0].cells == ["näher", ""]
    for length in range(1, len(whole)):
        with pytest.raises((ValueError, IndexError)):
            decoded(whole[:length], ANSWER)
