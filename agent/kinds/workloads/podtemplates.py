# SPDX-License-Identifier: Apache-2.0
"""PodTemplates: kept and shown; nothing makes pods of them."""

from collections.abc import Iterator

from agent.kinds.kind import Kind
from agent.kinds.parts import items, part
from agent.kinds.written import AGE, NAMES, SOURCE, shown_objects


def _faults(content: dict[str, object]) -> Iterator[tuple[str, str]]:
    if not items(part(content, "template"), "spec", "containers"):
        yield "template.spec.containers", "is missing; expected the containers of a pod"


KIND = Kind("podtemplates", "podtemplate", (), "PodTemplate", faults=_faults, pod_path=("template", "spec"))
SHOWN = shown_objects((*NAMES, AGE, SOURCE))
