# SPDX-License-Identifier: Apache-2.0
"""kepctl as users run it, against a real daemon without planes."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.host.process import PROGRAMS, Kepd, kepctl
from tests.ports import take_port


@pytest.fixture(scope="module")
def kepd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kepd]:
    with Kepd(tmp_path_factory.mktemp("c"), take_port()) as daemon:
        daemon.start("--planes", "")
        daemon.wait(lambda: daemon.get("/livez")[0] == 200 and daemon.socket.exists(), "an answer")
        yield daemon
        assert "Traceback" not in daemon.log.read_text()


def test_the_first_import_pulls_in_neither_grpc_nor_a_plane() -> None:
    """STY-19: what keeps `kepctl version` quick."""
    code = (
        "import sys, agent.cli, agent.cli.main; "
        "print([m for m in sys.modules if m.split('.')[0] in ('grpc', 'google', 'yaml', 'rich', 'asyncio', 'structlog')"
        " or m.startswith(('agent.pods', 'agent.images', 'agent.services', 'agent.topology', 'agent.proxy'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


def test_version_needs_no_daemon_and_can_ask_one(kepd: Kepd) -> None:
    assert kepctl("version").stdout.startswith("kepctl ")
    assert kepd.ctl("version", "--daemon").stdout.splitlines()[1].startswith("kepd ")


def test_status_and_health_say_what_is_missing(kepd: Kepd) -> None:
    status, health = kepd.ctl("status"), kepd.ctl("health")

    assert "does not answer: No such file or directory" in status.stdout
    assert "switched off" in status.stdout
    assert health.returncode == 1
    assert "NOT OK  runtime" in health.stdout
    assert health.stderr == "kepctl: unhealthy: runtime; kepctl status says why\n"


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("name", "node/n1"),
        ("table", "NAME  RUNTIME"),
        ("wide", "ENDPOINT"),
        ("yaml", "kind: Node"),
        ("json", '"kind": "Node"'),
    ],
)
def test_every_format(kepd: Kepd, output: str, expected: str) -> None:
    """CLI-02."""
    done = kepd.ctl("get", "nodes", "-o", output)

    assert done.returncode == 0
    assert expected in done.stdout
    assert "\x1b" not in done.stdout, "CLI-03: no colour where there is no terminal"


def test_the_api_is_found_by_reflection(kepd: Kepd) -> None:
    listed = kepd.ctl("api").stdout.splitlines()
    answer = json.loads(kepd.ctl("api", "ObjectService/List", '{"kind": "planes", "options": {"pageSize": 2}}').stdout)
    full = kepd.ctl("api", "kepd.v1.NodeService/GetNode")

    assert "kepd.v1.NodeService/GetNode" in listed
    assert [plane["metadata"]["name"] for plane in answer["objects"]] == ["images", "pods"]
    assert answer["meta"]["nextPageToken"]
    assert json.loads(full.stdout)["node"]["name"] == "n1"


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["gett", "pods"], 2, 'did you mean "get"?'),
        (["get", "plane", "nothing"], 3, 'no plane "nothing"'),
        (["get", "podz"], 2, 'did you mean "pods"?'),
        (["get", "pods"], 6, "the pods plane does not run here; set pods.enabled to true and restart kepd"),
        (["api", "NodeService/GetNod"], 3, 'did you mean "kepd.v1.NodeService/GetNode"?'),
        (["api", "NodeService/GetNode", "{"], 2, "the request is not a kepd.v1.GetNodeRequest"),
        (["config", "set", "images.maxParallelPulls=x"], 2, "images.maxParallelPulls: 'x' is not"),
        (["config", "set", "node.name=x"], 6, "takes effect only at a restart"),
        (["config", "set", "novalue"], 2, "is not KEY=VALUE"),
    ],
)
def test_each_failure_has_its_exit_code_and_says_what_would_help(
    kepd: Kepd, arguments: list[str], code: int, text: str
) -> None:
    """CLI-08, CLI-20."""
    done = kepd.ctl(*arguments)

    assert (done.returncode, text in done.stderr) == (code, True), done.stderr
    assert "Traceback" not in done.stderr


def test_an_unreachable_daemon_is_explained(tmp_path: Path) -> None:
    """CLI-06."""
    plain = tmp_path / "file"
    plain.touch()
    missing = kepctl("status", environment={"KEPD_ENDPOINT": str(tmp_path / "none")})
    no_socket = kepctl("--endpoint", str(plain), "status")

    assert missing.returncode == no_socket.returncode == 4
    assert "there is no such socket" in missing.stderr
    assert "is not a socket" in no_socket.stderr


def test_a_daemon_that_does_not_answer_is_given_up_on(short_path: Path) -> None:
    path = short_path / "silent.sock"
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen()
        done = kepctl("--endpoint", str(path), "--timeout", "0.3", "status")

    assert (done.returncode, done.stderr) == (7, "kepctl: no answer in time; --timeout allows more\n")


def test_keys_can_be_set_until_the_next_reload(kepd: Kepd) -> None:
    dry = kepd.ctl("config", "set", "--dry-run", "images.maxParallelPulls=8")
    assert dry.stdout == "images.maxParallelPulls: 3 -> 8 (dry run)\n"

    assert kepd.ctl("config", "set", "images.maxParallelPulls=auto").stdout == 'images.maxParallelPulls: 3 -> "auto"\n'
    assert 'images.maxParallelPulls: "auto"  # api' in kepd.ctl("config", "show", "--origin").stdout
    assert kepd.ctl("config", "reload").stdout == 'images.maxParallelPulls: "auto" -> 3\n'
    assert kepd.ctl("config", "reload").stdout == "nothing has changed\n"


def test_verbosity_changes_at_run_time(kepd: Kepd) -> None:
    """LOG-02."""
    assert kepd.ctl("api", "NodeService/SetVerbosity", '{"verbosity": 4, "planes": {"pods": 6}}').returncode == 0
    wrong = kepd.ctl("api", "NodeService/SetVerbosity", '{"planes": {"podz": 6}}')

    assert wrong.returncode == 2
    assert 'did you mean "pods"?' in wrong.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_and_answers(shell: str) -> None:
    """CLI-04."""
    script = kepctl("completion", shell)
    environment = {"_KEPCTL_COMPLETE": "bash_complete", "COMP_WORDS": "kepctl he", "COMP_CWORD": "1"}
    answers = kepctl(environment=environment)

    assert "_KEPCTL_COMPLETE" in script.stdout
    assert answers.stdout == "plain,health\n"


def test_objects_are_applied_by_a_daemon_that_runs_no_plane_for_them(kepd: Kepd, tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("{apiVersion: v1, kind: ConfigMap, metadata: {name: c}, data: {a: b}}\n")
    applied = kepd.ctl("apply", "-f", str(file))
    listed = kepd.ctl("get", "cm", "-o", "jsonpath={.items[*].data.a}")
    deleted = kepd.ctl("delete", "cm", "c")

    assert (applied.stdout, applied.stderr) == ("configmap/default/c created\n", "")
    assert (listed.stdout, deleted.stdout) == ("b\n", "configmap/default/c deleted\n")
    assert not list(kepd.manifests.iterdir())


def test_configuration_files_are_checked_without_a_daemon(tmp_path: Path) -> None:
    bad = tmp_path / "c.yaml"
    bad.write_text("apiVersion: config.kepd.dev/v1beta1\nkind: KepdConfiguration\nnode: {nam: x}\n")
    done = kepctl("config", "check", "--config", str(bad))
    short = kepctl("config", "check", str(bad))
    both = kepctl("config", "check", str(bad), "--config", "other")

    assert (short.returncode, short.stderr) == (78, done.stderr), "CL-17"
    assert (both.returncode, "name two files" in both.stderr) == (2, True)
    assert done.returncode == 78
    assert done.stderr == f'{bad}:3: node.nam: unknown key; did you mean "name"?\n'


def test_kepd_shows_defaults_schema_origins_and_differences(tmp_path: Path) -> None:
    """CFG-04."""

    def kepd(*arguments: str) -> str:
        command = [str(PROGRAMS / "kepd"), "config", *arguments]
        environment = {**os.environ, "KEPD_PODS__RELIST": "30s"}
        return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout

    good = tmp_path / "c.yaml"
    good.write_text(kepd("defaults"))

    assert kepd("check", "--config", str(good)) == f"read {good}\nthe configuration is valid\n"
    assert 'pods.relist: "30s"  # environment KEPD_PODS__RELIST' in kepd("show", "--origin")
    assert kepd("diff", "--config", str(good)) == 'pods.relist: "1m" -> "30s"  (environment KEPD_PODS__RELIST)\n'
    assert json.loads(kepd("schema"))["title"] == "KepdConfiguration"
