# SPDX-License-Identifier: Apache-2.0
"""The mark of `rollout restart` in a manifest. As with kubectl, a file that does not speak of it leaves it as it is."""

from collections.abc import Mapping
from typing import Any

RESTARTED = "kubectl.kubernetes.io/restartedAt"


def kept_restart(given: Mapping[str, Any], there: Mapping[str, Any]) -> dict[str, Any] | None:
    """What is given with the mark of what is there; None where nothing is to be kept."""
    mark = _annotations(there).get(RESTARTED)
    own = _annotations(given)
    if mark is None or RESTARTED in own or not isinstance(given.get("spec"), dict):
        return None
    spec = given["spec"]
    template = spec.get("template") if isinstance(spec.get("template"), dict) else {}
    metadata = {**(template.get("metadata") or {}), "annotations": {**own, RESTARTED: mark}}
    return {**given, "spec": {**spec, "template": {**template, "metadata": metadata}}}


def _annotations(made: Mapping[str, Any]) -> Mapping[str, Any]:
    found: object = made
    for name in ("spec", "template", "metadata", "annotations"):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}
