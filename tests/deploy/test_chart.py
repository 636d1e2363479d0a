# SPDX-License-Identifier: Apache-2.0
"""The chart gives what the overlays give. KEPD_HELM names helm; without it the few words of its templates that the
chart has are carried out here."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.kustomize import Rendered, render
from tests.host.process import ROOT

TOKEN = re.compile(r"\s*\{\{-\s*(.*?)\s*\}\}|\{\{\s*(.*?)\s*\}\}")
OVERLAYS = {
    "base": (), "overlays/debug": ("debug",), "overlays/dns": ("dns",), "overlays/events": ("events",),
    "overlays/images": ("images",), "overlays/iptables": ("iptables",), "overlays/rollouts": ("images", "rollouts"),
    "overlays/taint": ("taint",),
}  # fmt: skip
Value = Any


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("chart") / "kepd")


def write(folder: Path, *more: str) -> Path:
    subprocess.run([sys.executable, str(ROOT / "scripts/chart.py"), str(folder), *more], check=True)
    return folder


def templated(chart: Path, values: dict[str, Any]) -> Rendered:
    if helm := os.environ.get("KEPD_HELM"):
        (chart / "mine.json").write_text(json.dumps(values))
        command = [helm, "template", "kepd", str(chart), "--kube-version", "1.36.0", "-f", str(chart / "mine.json")]
        texts = [subprocess.run(command, capture_output=True, text=True, check=True).stdout]
    else:
        texts = [carry_out(path.read_text(), {"Values": values}) for path in sorted((chart / "templates").iterdir())]
    objects = [one for text in texts for one in yaml.safe_load_all(text) if one is not None]
    return {(one["kind"], one["metadata"]["name"]): one for one in objects}


def carry_out(text: str, around: Value) -> str:
    """Each action trims what stands before it, where it says so."""
    parts: list[tuple[str, str]] = []
    at = 0
    for found in TOKEN.finditer(text):
        parts += [("text", text[at : found.start()]), ("action", found[1] or found[2])]
        at = found.end()
    return "".join(_block(iter([*parts, ("text", text[at:])]), {".": around, "": around}, is_on=True)[0])


def _block(parts: Iterator[tuple[str, str]], names: dict[str, Value], *, is_on: bool) -> tuple[list[str], str]:
    """Up to `end` or `else`, which it returns. What is off is read and says nothing."""
    said: list[str] = []
    for kind, one in parts:
        word, _, rest = one.partition(" ")
        if kind == "text":
            said.append(one)
        elif one in ("end", "else"):
            return (said if is_on else []), one
        elif word in ("if", "with"):
            found = _value(rest, names)
            then, stop = _block(parts, {**names, ".": found} if word == "with" else names, is_on=bool(found))
            said += then
            if stop == "else":
                said += _block(parts, names, is_on=not found)[0]
        elif word == "range":
            inner: list[tuple[str, str]] = []
            for item in parts:
                inner.append(item)
                if item == ("action", "end"):
                    break
            for key, value in sorted(_value(rest.split(":= ")[1], names).items()):
                said += _block(iter(inner), {**names, "$key": key, "$value": value}, is_on=True)[0]
        else:
            name, _, quoted = one.partition(" | ")
            found = _value(name, names)
            said.append(json.dumps(str(found)) if quoted == "quote" else str(found))
    return (said if is_on else []), ""


def _value(name: str, names: dict[str, Value]) -> Value:
    if name in names:
        return names[name]
    first, *way = name.split(".")
    assert first == "", f"{name} is no value that is read here"
    found = names[""]
    for one in way:
        found = found[one]
    return found


def values_of(chart: Path, *components: str) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load((chart / "values.yaml").read_text())
    for one in components:
        assert one in values["components"]
        values["components"][one] = True
    return values


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_it_gives_what_an_overlay_gives(chart: Path, overlay: str) -> None:
    assert templated(chart, values_of(chart, *OVERLAYS[overlay])) == render(ROOT / "deploy" / overlay)


def test_each_component_that_there_is_has_a_switch_and_any_two_go_together(chart: Path) -> None:
    names = sorted(path.name for path in (ROOT / "deploy/components").iterdir())
    assert sorted(values_of(chart)["components"]) == names
    for first, second in combinations(names, 2):
        objects = templated(chart, values_of(chart, first, second))
        containers = objects["DaemonSet", "kepd"]["spec"]["template"]["spec"]["containers"]
        planes = containers[0]["args"][2].split(",")
        assert planes == ["services", *(one for one in ("dns", "images") if one in (first, second))]


def test_what_a_user_says_of_image_and_configuration_is_there(tmp_path: Path) -> None:
    chart = write(tmp_path / "kepd", "--image", f"registry.example/kepd@sha256:{'ab' * 32}")
    values = values_of(chart)
    values["configuration"]["KEPD_KUBERNETES__SERVERS"] = '["https://192.0.2.1:6443"]'
    objects = templated(chart, values)
    spec = objects["DaemonSet", "kepd"]["spec"]["template"]["spec"]

    images = {one["image"] for one in (*spec["containers"], *spec["initContainers"])}
    assert images == {f"registry.example/kepd@sha256:{'ab' * 32}"}
    assert objects["ConfigMap", "kepd"]["data"]["KEPD_KUBERNETES__SERVERS"] == '["https://192.0.2.1:6443"]'
