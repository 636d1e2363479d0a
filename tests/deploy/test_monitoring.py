# SPDX-License-Identifier: Apache-2.0
"""Alerts and dashboards: every name exists, every anchor leads somewhere, and each alert fires and clears (ALR)."""

import asyncio
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from agent.observe.pages.families import DEVICE_FAMILIES, FAMILIES, NETWORK_FAMILIES
from scripts.monitoring import ALERTS, FOLDER, NODE_PANELS, POD_PANELS, files
from scripts.vocabulary import metrics
from tests.deploy.alert_cases import CASES
from tests.observe.kubelets_families import CADVISOR, OURS_ALONE

ROOT = Path(__file__).parents[2]
PROMTOOL = os.environ.get("KEPD_PROMTOOL") or shutil.which("promtool") or ""
SERIES = re.compile(r"\b((?:kepd|container|machine|process|up)[a-z_]*)(\{[^}]*\})?")
LABELS = re.compile(r"([a-z_]+)\s*(?:=~|!=|!~|=)")
# Prometheus adds them, or they tell buckets apart.
EVERYWHERE = {"instance", "job", "le"}
OF_CONTAINERS = {
    "container", "id", "image", "name", "namespace", "pod", "device", "interface", "cpu", "scope", "failure_type",
}  # fmt: skip
ENDINGS = ("_total", "_bucket", "_count", "_sum")


@pytest.fixture(scope="module")
def known() -> dict[str, set[str]]:
    """Names of series that exist, with their labels."""
    found: dict[str, set[str]] = {"up": set()}
    for one in asyncio.run(metrics()):
        labels = set(getattr(one, "_labelnames", ()))
        for ending in ("", *ENDINGS):
            found[one.name + ending] = labels
    shown = {line.split()[0] for line in CADVISOR.split("\n") if line} | set(OURS_ALONE)
    shown |= {one.name for one in FAMILIES} | {one[0] for one in DEVICE_FAMILIES}
    shown |= {f"container_network_{one[0]}_total" for one in NETWORK_FAMILIES}
    for name in shown:
        for ending in ("", "_total"):
            found.setdefault(name + ending, OF_CONTAINERS)
    return found


def expressions() -> list[tuple[str, str]]:
    panels = [(one.title, expr) for one in (*NODE_PANELS, *POD_PANELS) for expr, _ in one.queries]
    return [*((one.name, one.expr) for one in ALERTS), *panels]


@pytest.mark.parametrize(("where", "expr"), expressions(), ids=map(str, range(len(expressions()))))
def test_every_name_and_label_of_an_expression_exists(where: str, expr: str, known: dict[str, set[str]]) -> None:
    """ALR-02."""
    plain = re.sub(r"\b(?:by|on)\s*\([^)]*\)", "", expr)
    for name, chosen in SERIES.findall(plain):
        assert name in known, (where, name)
        labels = set(LABELS.findall(chosen)) - EVERYWHERE
        assert labels <= known[name], (where, name, labels - known[name])


def test_the_files_are_what_the_lists_say_and_made_twice_equal() -> None:
    """ALR-04."""
    assert {name: (FOLDER / name).read_text() for name in files()} == files() == files()


def test_every_alert_says_what_where_and_what_to_do() -> None:
    """ALR-01."""
    anchors = re.findall(r"^## (\w+)$", (ROOT / "docs/runbooks.md").read_text(), re.MULTILINE)
    rules = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"][0]["rules"]

    assert anchors == [one.name for one in ALERTS] == [rule["alert"] for rule in rules]
    for rule in rules:
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert (ROOT / page).exists()
        assert anchor in [one.lower() for one in anchors]
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert "$" in rule["annotations"]["description"]


def test_dashboards_are_whole() -> None:
    """ALR-04: each panel has a unit, a place of its own and a source that a variable names."""
    for name in ("dashboard-node.json", "dashboard-pods.json"):
        found = json.loads((FOLDER / name).read_text())
        places = [(one["gridPos"]["x"], one["gridPos"]["y"]) for one in found["panels"]]
        assert len(set(places)) == len(places)
        for panel in found["panels"]:
            assert panel["fieldConfig"]["defaults"]["unit"]
            assert panel["datasource"]["uid"] == "${datasource}"
            assert all(target["expr"] for target in panel["targets"])


def test_pods_are_shown_by_families_that_a_kubelet_has_too() -> None:
    """ALR-04: so that the page also serves beside a kubelet."""
    names = {name for one in POD_PANELS for expr, _ in one.queries for name, _ in SERIES.findall(expr)}

    assert {name for name in names if name.startswith("kepd_")} == set()


def test_every_alert_has_cases() -> None:
    assert [one.name for one in ALERTS] == [case.alert for case in CASES]


@pytest.fixture(scope="module")
def promtool() -> str:
    assert PROMTOOL, (
        "promtool is missing; scripts/prepare installs Debian's package prometheus, KEPD_PROMTOOL names another"
    )
    return PROMTOOL


def test_prometheus_takes_the_rules(promtool: str) -> None:
    """ALR-03."""
    done = subprocess.run(
        [promtool, "check", "rules", FOLDER / "alerts.yaml"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(180)
def test_each_alert_fires_and_clears(promtool: str, tmp_path: Path) -> None:
    """ALR-03: Prometheus plays what each is about, and what looks nearly like it."""
    tests = [test for case in CASES for test in case.tests()]
    (tmp_path / "tests.yaml").write_text(
        yaml.safe_dump({"rule_files": [str(FOLDER / "alerts.yaml")], "evaluation_interval": "1m", "tests": tests})
    )
    done = subprocess.run(
        [promtool, "test", "rules", tmp_path / "tests.yaml"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
