# SPDX-License-Identifier: Apache-2.0
"""Renders what `deploy/` uses of kustomize, for machines without kubectl.

Owns: resources, components, JSON patches that add, replace or test, and names of images. Never: guesses: a field or an
operation that is not among these is an error, so that nothing is left out silently.
"""

from pathlib import Path
from typing import Any

import yaml

__all__ = ["Rendered", "render"]

Rendered = dict[tuple[str, str], dict[str, Any]]
"""Objects by kind and name."""

KNOWN = {"apiVersion", "kind", "resources", "components", "patches", "images"}


def render(folder: Path) -> Rendered:
    """All objects of a kustomization."""
    found: Rendered = {}
    _apply(folder.resolve(), found)
    return found


def _apply(folder: Path, found: Rendered) -> None:
    """Resources, then components, then patches, then images: a component changes what was collected before it."""
    said = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert set(said) <= KNOWN, f"{folder}: {set(said) - KNOWN} is not rendered here"
    for name in said.get("resources", ()):
        if (folder / name).is_dir():
            _apply((folder / name).resolve(), found)
        else:
            _add(folder / name, found)
    for name in said.get("components", ()):
        _apply((folder / name).resolve(), found)
    for patch in said.get("patches", ()):
        target = found[patch["target"]["kind"], patch["target"]["name"]]
        for step in yaml.safe_load((folder / patch["path"]).read_text()):
            _change(target, step)
    for image in said.get("images", ()):
        for one in found.values():
            _name_images(one, image)


def _add(path: Path, found: Rendered) -> None:
    for one in yaml.safe_load_all(path.read_text()):
        key = one["kind"], one["metadata"]["name"]
        assert key not in found, f"{path}: {key} is there already"
        found[key] = one


def _change(target: dict[str, Any], step: dict[str, Any]) -> None:
    *way, last = (part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:])
    place: Any = target
    for part in way:
        place = place[int(part)] if isinstance(place, list) else place[part]
    match step["op"], place:
        case "add", list():
            place.insert(len(place) if last == "-" else int(last), step["value"])
        case "add", dict():
            place[last] = step["value"]
        case "replace" | "test" as operation, _:
            index: Any = int(last) if isinstance(place, list) else last
            if operation == "test":
                assert place[index] == step["value"], step
            place[index] = step["value"]
        case operation, _:
            raise AssertionError(f"{operation} is not rendered here")


def _name_images(one: dict[str, Any], image: dict[str, str]) -> None:
    """A later kustomization names again what an earlier one has tagged."""
    pod = one.get("spec", {}).get("template", {}).get("spec", {})
    for container in (*pod.get("initContainers", ()), *pod.get("containers", ())):
        name, _, tag = container["image"].partition(":")
        if name == image["name"]:
            tag = image.get("newTag", tag)
            suffix = f"@{image['digest']}" if "digest" in image else f":{tag}" if tag else ""
            container["image"] = image.get("newName", name) + suffix
