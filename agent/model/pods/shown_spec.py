# SPDX-License-Identifier: Apache-2.0
"""A pod as who may only read sees it: variables by name, without the values that the manifest gives them."""

from collections.abc import Mapping, Sequence
from typing import Any

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
"""Where kubectl keeps the whole object once more, values too."""
LEFT_OUT = "kepd.dev/values-left-out"
"""The annotation of an object that is shown without its values. A text that has it is never written."""
CONTAINERS = ("containers", "initContainers", "ephemeralContainers")


def without_values(spec: Mapping[str, object]) -> dict[str, object]:
    shown = dict(spec)
    for part in CONTAINERS:
        listed = shown.get(part)
        if isinstance(listed, list | tuple):
            shown[part] = [_named_alone(one) if isinstance(one, dict) else one for one in listed]
    return shown


def has_values(spec: Mapping[str, object]) -> bool:
    return any(
        isinstance(one, dict) and any(isinstance(each, dict) and each.get("value") for each in one.get("env") or ())
        for part in CONTAINERS
        for one in _listed(spec.get(part))
    )


def _listed(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else ()


def without_copy(annotations: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in annotations.items() if name != LAST_APPLIED}


def _named_alone(container: Mapping[str, object]) -> dict[str, object]:
    variables = container.get("env")
    if not isinstance(variables, list | tuple):
        return dict(container)
    named = [{key: part for key, part in one.items() if key != "value"} for one in variables if isinstance(one, dict)]
    return {**container, "env": named}


def without_annotation(made: Mapping[str, Any], name: str) -> dict[str, Any]:
    metadata = dict(made.get("metadata") or {})
    metadata["annotations"] = {key: value for key, value in (metadata.get("annotations") or {}).items() if key != name}
    if not metadata["annotations"]:
        del metadata["annotations"]
    return {**made, "metadata": metadata}
