# SPDX-License-Identifier: Apache-2.0
"""`examples/what-if`: the workflow's own commands, run on the dump beside it, with stand-ins for pipx and kubectl."""

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from agent.model.exit_codes import FAILURE
from kepd_rehearsal.run.clusters.asking import ASKED
from tests.host.process import PROGRAMS, ROOT

EXAMPLE = ROOT / "examples/what-if"
STEPS = yaml.safe_load((EXAMPLE / "workflow.yaml").read_text())["jobs"]["what-if"]["steps"]
RUN = {step["name"]: step for step in STEPS if "run" in step}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkout with the change, and kubectl answering with the dump as the user who is in the file."""
    shutil.copytree(EXAMPLE / "manifests", tmp_path / "manifests")
    programs = tmp_path / "programs"
    programs.mkdir()
    shutil.copy(EXAMPLE / "cluster.json", programs)
    kubectl = 'echo "$@" > asked; test "$(cat "$2")" = "the secret" && cat programs/cluster.json'
    for name, text in (("pipx", 'test "$*" = "install kepd[rehearsal]"'), ("kubectl", kubectl)):
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    return tmp_path


def run(folder: Path, step: str) -> subprocess.CompletedProcess[str]:
    path = f"{folder}/programs:{PROGRAMS}:/usr/bin:/bin"
    environment = {"PATH": path, **dict.fromkeys(RUN[step].get("env", {}), "the secret")}
    command = ["bash", "-e", "-c", RUN[step]["run"]]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_steps_do_what_the_page_says(folder: Path) -> None:
    done = [run(folder, step) for step in RUN]
    kept = next(step for step in STEPS if step.get("uses", "").startswith("actions/upload-artifact@"))

    assert [one.returncode for one in done] == [0, 0, 0], done
    assert "What if" in (folder / kept["with"]["path"]).read_text()
    assert kept["if"] == "always()"
    assert not (folder / "kubeconfig").exists()
    assert set((folder / "asked").read_text().split()[3].split(",")) == {one.plural for _, one in ASKED}


def test_a_change_that_does_not_fit_fails_the_job_and_leaves_the_page(folder: Path) -> None:
    web = folder / "manifests/web.yaml"
    web.write_text(web.read_text().replace("replicas: 6", "replicas: 60"))
    run(folder, "Take the cluster as it is")
    done = run(folder, "Rehearse")

    assert (done.returncode, "36 pods wait" in done.stderr) == (FAILURE, True), done.stderr
    assert (folder / "what-if.html").read_text().startswith("<!doctype html>")
