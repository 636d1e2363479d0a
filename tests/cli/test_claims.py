# SPDX-License-Identifier: Apache-2.0
"""`kepctl explain claim` on files, run in this process."""

import json
from pathlib import Path

from click.testing import CliRunner, Result

from agent.cli.main import cli
from agent.cli.session import CommandFailed
from packages.devices.tests.written import CLAIM, CLASS, POD, SLICE, TEMPLATE

STATUS = """
status:
  allocation:
    devices:
      results:
      - {request: gpu, driver: gpu.example.com, pool: here, device: gpu-0}
      - {request: gpu, driver: gpu.example.com, pool: here, device: gpu-1}
"""


def explained(folder: Path, *arguments: str, **texts: str) -> Result:
    given = {"claim": CLAIM, "class": CLASS, "slice": SLICE, "template": TEMPLATE, "pod": POD, **texts}
    for name, text in given.items():
        (folder / f"{name}.yaml").write_text(text)
    command = ["explain", "claim", "--from-files", str(folder), "--node", "here", *arguments]
    return CliRunner().invoke(cli, command)


def test_a_claim_is_explained_device_by_device(tmp_path: Path) -> None:
    """DVX-1."""
    result = explained(tmp_path, "default/gpus")

    assert result.exit_code == 0
    assert [line.split() for line in result.output.splitlines() if line][:3] == [
        ["CLAIM", "default/gpus", "gets", "its", "devices:", "2", "of", "2", "devices,", "after", "2", "were", "tried"],
        ["CLAIM", "default/gpus", "REQUEST", "gpu", "2", "devices", "of", "class", "gpu.example.com"],
        ["DEVICE", "REASON"],
    ]
    assert "gpu.example.com/here/gpu-2  not-needed" in result.output


def test_the_claims_of_a_pod_are_explained_together(tmp_path: Path) -> None:
    result = explained(tmp_path, "--pod", "web", "-o", "json")
    found = json.loads(result.output)

    assert [one["claim"] for one in found["requests"]] == ["default/web-fast-sc6dm", "default/gpus"]
    assert found["outcome"] == "allocated"


def test_what_is_held_is_told_with_its_holder(tmp_path: Path) -> None:
    """DVX-2."""
    template = TEMPLATE.replace("{deviceClassName: gpu.example.com}", "{deviceClassName: gpu.example.com, count: 2}")
    result = explained(tmp_path, "default/web-fast-sc6dm", "--trust-status", claim=CLAIM + STATUS, template=template)

    assert result.exit_code == 1
    assert "1 of 2 for default/web-fast-sc6dm/gpu: 2 in-use default/gpus" in result.output
    assert "- for 2 devices, the pods of default/gpus would have to end" in result.output


def test_a_fault_in_the_files_ends_the_command(tmp_path: Path) -> None:
    result = explained(tmp_path, "default/gpus", claim=CLAIM.replace("count: 2", "count: 0"))

    assert isinstance(result.exception, CommandFailed)
    assert result.exception.exit_code == 2
    assert "claim.yaml:11: spec.devices.requests[0].exactly.count: Invalid" in str(result.exception)


def test_a_claim_that_no_file_has_is_wrong_input(tmp_path: Path) -> None:
    result = explained(tmp_path, "default/gpu")

    assert isinstance(result.exception, CommandFailed)
    assert result.exception.exit_code == 2
    assert 'did you mean "default/gpus"?' in str(result.exception)


def test_a_pod_whose_template_is_missing_waits(tmp_path: Path) -> None:
    result = explained(tmp_path, "--pod", "web", template="")

    assert isinstance(result.exception, CommandFailed)
    assert result.exception.exit_code == 1
    assert "pod default/web waits: claim template default/one-gpu is not there" in str(result.exception)
