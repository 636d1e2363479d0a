#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write a chart for Helm from deploy/: `scripts/chart.py FOLDER [--image NAME@sha256:…]`.

What kustomize puts together by components is one template here, where each component is a switch: base says what is
always there, and each step of a component's patches becomes a condition. So both give the same objects. A step that
this does not know is refused. Namespace and names stay as they are in deploy/.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
IMAGE = "{{ .Values.image.name }}{{ with .Values.image.digest }}@{{ . }}{{ else }}:{{ .Values.image.tag }}{{ end }}"
Tree = dict[str, Any] | list[Any]
KNOWN = {"apiVersion", "kind", "resources", "components", "patches", "images"}


@dataclass
class Switched:
    """A value that is there with a component alone."""

    component: str
    value: Any


@dataclass
class Text:
    """A text of which components add to the end."""

    text: str
    more: list[tuple[str, str]] = field(default_factory=list)

    def __str__(self) -> str:
        return self.text + "".join(f"{{{{ if {_switch(name)} }}}}{text}{{{{ end }}}}" for name, text in self.more)


def _switch(component: str) -> str:
    return f".Values.components.{component}"


def kustomization(folder: Path) -> dict[str, Any]:
    said: dict[str, Any] = yaml.safe_load((folder / "kustomization.yaml").read_text())
    if set(said) - KNOWN:
        raise SystemExit(f"{folder}: {', '.join(set(said) - KNOWN)} has no counterpart in a chart")
    return said


def read(folder: Path, name: str) -> list[Any]:
    return [one for one in yaml.safe_load_all((folder / name).read_text()) if one is not None]


def carry_out(objects: list[Any], folder: Path) -> None:
    """The steps of a component's patches, as switches in what they change."""
    for patch in kustomization(folder).get("patches", ()):
        target = next(
            one
            for one in objects
            if (one["kind"], one["metadata"]["name"]) == (patch["target"]["kind"], patch["target"]["name"])
        )
        for step in read(folder, patch["path"])[0]:
            *way, last = (part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:])
            place = target
            for part in way:
                place = place[int(part)] if isinstance(place, list) else place[part]
            _step(place, last, step, folder.name)


def _step(place: Tree, last: str, step: dict[str, Any], component: str) -> None:
    match step["op"], place:
        case "add", list() if last == "-":
            place.append(Switched(component, step["value"]))
        case "add", dict() if last not in place:
            place[last] = Switched(component, step["value"])
        case "replace", list() if step["value"].startswith(str(getattr(place[int(last)], "text", place[int(last)]))):
            before = place[int(last)]
            now = before if isinstance(before, Text) else Text(before)
            now.more.append((component, step["value"].removeprefix(now.text)))
            place[int(last)] = now
        case "test", _:
            pass
        case _:
            raise SystemExit(f"{component}: {step} has no counterpart in a chart")


def lines(value: Tree, indent: str = "") -> Iterator[str]:
    """YAML of a tree, one line for each scalar."""
    pairs = value.items() if isinstance(value, dict) else ((None, one) for one in value)
    for key, found in pairs:
        one = found.value if isinstance(found, Switched) else found
        start = f"{indent}- " if key is None else f"{indent}{key}: "
        if isinstance(found, Switched):
            yield f"{{{{- if {_switch(found.component)} }}}}"
        if isinstance(one, dict | list) and one:
            yield start.rstrip()
            yield from lines(one, f"{indent}  ")
        elif key == "image":
            yield f"{start}{json.dumps(IMAGE)}"
        else:
            yield f"{start}{json.dumps(str(one) if isinstance(one, Text) else one)}"
        if isinstance(found, Switched):
            yield "{{- end }}"


def templates() -> tuple[dict[str, str], dict[str, Any], dict[str, bool]]:
    """Files, the configuration that is filled in, and the switches."""
    base = [one for name in kustomization(DEPLOY / "base")["resources"] for one in read(DEPLOY / "base", name)]
    components = sorted(path.name for path in (DEPLOY / "components").iterdir())
    files = {}
    for name in components:
        folder = DEPLOY / "components" / name
        carry_out(base, folder)
        own = [one for file in kustomization(folder).get("resources", ()) for one in read(folder, file)]
        if own:
            text = "\n---\n".join("\n".join(lines(one)) for one in own)
            files[f"{name}.yaml"] = f"{{{{- if {_switch(name)} }}}}\n{text}\n{{{{- end }}}}\n"
    (settings,) = (one for one in base if one["kind"] == "ConfigMap")
    configuration = {key: one for key, one in settings["data"].items() if not isinstance(one, Switched)}
    settings["data"] = {key: one for key, one in settings["data"].items() if isinstance(one, Switched)}
    each = "  {{- range $key, $value := .Values.configuration }}\n  {{ $key }}: {{ $value | quote }}\n  {{- end }}"
    for one in base:
        text = "\n".join(lines(one))
        more = f"\n{each}" if one is settings else ""
        files[f"{one['kind'].lower()}-{one['metadata']['name']}.yaml"] = f"{text}{more}\n"
    return files, configuration, dict.fromkeys(components, False)


def main(words: list[str]) -> int:
    asked = argparse.ArgumentParser(prog="scripts/chart.py")
    asked.add_argument("folder", type=Path)
    asked.add_argument("--image", default="", help="name@digest")
    given = asked.parse_args(words)
    files, configuration, components = templates()
    tag = kustomization(DEPLOY / "base")["images"][0]["newTag"]
    name, _, digest = given.image.partition("@")
    values = {
        "image": {"name": name or "kepd", "tag": tag, "digest": digest},
        "components": components,
        "configuration": configuration,
    }
    chart = {
        "apiVersion": "v2", "name": "kepd", "version": tag, "appVersion": tag, "type": "application",
        "description": "Services of Kubernetes in the kernel of each node, in the place of kube-proxy",
        "kubeVersion": ">=1.33.0-0",
    }  # fmt: skip
    (given.folder / "templates").mkdir(parents=True)
    (given.folder / "Chart.yaml").write_text(yaml.safe_dump(chart, sort_keys=False))
    (given.folder / "values.yaml").write_text(
        "# Components are those of deploy/components; rollouts needs images. Keys of the configuration have a form\n"
        "# for the environment: KEPD_KUBERNETES__SERVERS and the ranges of pods are to be filled in.\n"
        + yaml.safe_dump(values, sort_keys=False)
    )
    for file, text in files.items():
        (given.folder / "templates" / file).write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
