# SPDX-License-Identifier: Apache-2.0
"""Policies and pods of the plane from what the oracle reads."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from agent.objects.admitting import objects_in
from agent.policies.manifest.objects import PolicedPod, Policy
from agent.policies.manifest.reading import POLICY_READING, policies_in
from tests.policies.oracle import Pod


def policies_of(objects: Iterable[Mapping[str, Any]]) -> Mapping[str, Policy]:
    content = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}).encode()
    found = policies_in(objects_in({"policies.yaml": content}, POLICY_READING))
    assert not found.findings, found.findings
    return found.policies


def policed(pod: Pod) -> PolicedPod:
    return PolicedPod(
        f"uid-{pod.name}", pod.namespace, pod.name, pod.labels, pod.addresses, pod.host_network, pod.ports
    )  # fmt: skip
