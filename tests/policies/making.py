# SPDX-License-Identifier: Apache-2.0
"""Policies and pods of the plane from what the oracle reads."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from agent.policies.manifest.objects import PolicedPod, Policy
from agent.policies.manifest.reading import read_policies
from tests.policies.oracle import Pod


def policies_of(objects: Iterable[Mapping[str, Any]]) -> Mapping[str, Policy]:
    content = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}).encode()
    found = read_policies({"policies.yaml": content})
    assert not found.findings, found.findings
    return found.policies


def policed(pod: Pod) -> PolicedPod:
    return PolicedPod(
        f"uid-{pod.name}", pod.namespace, pod.name, pod.labels, pod.addresses, pod.host_network, pod.ports
    )  # fmt: skip
