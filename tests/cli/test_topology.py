# SPDX-License-Identifier: Apache-2.0
"""The topology commands, run in this process on the files of docs/topology.md and on wrong ones."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from agent.cli.main import cli
from agent.cli.session import CommandFailed

STORY = Path(__file__).resolve().parents[2] / "docs" / "topology.md"
BLOCKS = re.findall(r"```yaml\n(.*?)```", STORY.read_text("utf-8"), re.DOTALL)
SERVICE, NODES, FOUR, FIVE = BLOCKS[:4]

SPREAD = """
apiVersion: v1
kind: Pod
metadata: {name: web-7, labels: {app: web}}
spec:
  containers: [{name: main, image: i}]
  topologySpreadConstraints:
  - {maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: web}}}
"""


def node(name: str, zone: str, taints: str = "") -> str:
    return (
        f"---\napiVersion: v1\nkind: Node\nmetadata: {{name: {name}, labels: {{zone: {zone}}}}}\nspec: {{{taints}}}\n"
    )


def pod(name: str, on: str) -> str:
    return (
        f"---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, labels: {{app: web}}}}\n"
        f"spec: {{nodeName: {on}, containers: [{{name: main, image: i}}]}}\n"
    )


TAINT = "taints: [{key: dedicated, value: x, effect: NoSchedule}]"
PINNED = SPREAD + node("a", "z1") + node("b", "z2") + node("c", "z3", TAINT) + pod("web-1", "a") + pod("web-2", "b")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


def files(folder: Path, *texts: str) -> str:
    for number, text in enumerate(texts):
        (folder / f"{number}.yaml").write_text(text)
    return str(folder)


def test_active_hints_are_told_with_exit_code_0(tmp_path: Path) -> None:
    """NU-05: from all files that are named, and not from the last alone."""
    folder = Path(files(tmp_path, SERVICE, NODES, FOUR))
    given = [word for path in sorted(folder.iterdir()) for word in ("--from-files", str(path))]
    done = run("explain", "hints", "default/web", *given)

    assert done.exit_code == 0, done.output
    assert "SERVICE default/web  mode topology" in done.output
    assert "IPv4  active" in done.output


def test_a_refusal_names_rule_numbers_and_remedy_with_exit_code_1(tmp_path: Path) -> None:
    """TOP-90 to TOP-92."""
    source = files(tmp_path, SERVICE, NODES, FIVE)
    done = run("explain", "hints", "web", "--from-files", source)
    data = json.loads(run("explain", "hints", "web", "--from-files", source, "-o", "json").stdout)

    assert done.exit_code == 1
    assert "refused overload: minimums need 7 endpoints, 5 are ready (3 zones, 20 % limit)" in done.output
    assert "activates at 4, 7, 8, 9 and from 11 on; nearest: 4 or 7" in done.output
    assert (data["families"][0]["active"], data["families"][0]["minTotal"]) == (False, 7)


def test_a_tainted_domain_that_pins_the_minimum_is_shown_with_the_way_out(tmp_path: Path) -> None:
    """TOP-75, TOP-93."""
    source = files(tmp_path, PINNED)
    stuck = run("explain", "spread", "default/web-7", "--from-files", source)
    honored = run("explain", "spread", "default/web-7", "--from-files", source, "--honor-taints")

    assert (stuck.exit_code, honored.exit_code) == (1, 0)
    assert re.search(r"^z3 +0 +1 +c", stuck.output, re.MULTILINE), stuck.output
    assert "nodeTaintsPolicy" in stuck.output
    assert re.search(r"^a +candidate", honored.output, re.MULTILINE)


def test_zones_are_planned_as_table_chart_and_json() -> None:
    """TOP-94."""
    done = run("plan", "zones", "--zones", "a=2,b=2,c=4", "--replicas", "1..12")
    data = json.loads(run("plan", "zones", "--zones", "a=2,b=2,c=4", "--replicas", "1..12", "-o", "json").stdout)

    assert done.exit_code == 0
    assert "···█··███·██" in done.output
    assert "activates at 4, 7, 8, 9 and from 11 on" in done.output
    assert [row["n"] for row in data["rows"] if row["active"]] == [4, 7, 8, 9, 11, 12]
    assert data["alwaysFrom"] == 11


def test_zones_of_a_pod_come_from_its_nodes(tmp_path: Path) -> None:
    """TOP-96."""
    nodes = tmp_path / "nodes.yaml"
    nodes.write_text(NODES)
    web = tmp_path / "web.yaml"
    web.write_text(SPREAD.replace("topologyKey: zone", "topologyKey: topology.kubernetes.io/zone"))
    done = run("plan", "zones", "--pod", str(web), "--nodes", str(nodes), "--replicas", "4..5")

    assert done.exit_code == 0, done.output
    assert "active" in done.output


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["plan", "zones", "--zones", "a=x"], "zone a: 'x' is not a quantity"),
        (["plan", "zones"], "give either --zones, or --pod together with --nodes"),
        (["plan", "zones", "--zones", "a=1,b=1", "--replicas", "9..1"], "9..1"),
        (["explain", "hints", "nothing", "--from-files", "DIR"], "no Service default/nothing"),
        (["explain", "spread", "nothing", "--from-files", "DIR"], "no Pod or workload default/nothing"),
    ],
)
def test_wrong_questions_end_with_exit_code_2(tmp_path: Path, arguments: list[str], complaint: str) -> None:
    source = files(tmp_path, SERVICE, NODES)
    done = run(*(source if argument == "DIR" else argument for argument in arguments))

    assert isinstance(done.exception, CommandFailed)
    assert done.exception.exit_code == 2
    assert complaint in str(done.exception)


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        (NODES.replace('cpu: "2"', 'cpu: "-2"'), "-2"),
        (SERVICE.replace("ports:", "portz:"), "portz"),
        (SERVICE + "kind: Service\n", "occurs again"),
        ("a: b: c", "not YAML"),
    ],
)
def test_wrong_manifests_are_told_in_one_line_each(tmp_path: Path, broken: str, complaint: str) -> None:
    source = files(tmp_path, broken, FOUR)
    done = run("explain", "hints", "web", "--from-files", source)
    text = done.stderr or str(done.exception)

    assert (done.exit_code == 2) or (isinstance(done.exception, CommandFailed) and done.exception.exit_code == 2)
    assert complaint in text
    assert f"{tmp_path}/0.yaml" in text
