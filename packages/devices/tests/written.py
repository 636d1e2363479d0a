# SPDX-License-Identifier: Apache-2.0
"""Manifests of claims, classes and slices as people write them, and changes of them."""

from typing import Any

import yaml

CLAIM = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: gpus, namespace: default}
spec:
  devices:
    requests:
    - name: gpu
      exactly:
        deviceClassName: gpu.example.com
        count: 2
        selectors: [{cel: {expression: "device.driver == 'gpu.example.com'"}}]
"""
TEMPLATE = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: one-gpu}
spec:
  metadata: {labels: {made: "yes"}, annotations: {note: text}}
  spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.example.com}}]}}
"""
CLASS = """
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu.example.com}
spec: {selectors: [{cel: {expression: "device.driver == 'gpu.example.com'"}}]}
"""
SLICE = """
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: gpus-here}
spec:
  driver: gpu.example.com
  nodeName: here
  pool: {name: here, generation: 1, resourceSliceCount: 1}
  devices:
  - {name: gpu-0, attributes: {model: {string: a100}}}
  - {name: gpu-1, attributes: {model: {string: a100}}}
  - {name: gpu-2, attributes: {model: {string: h100}}}
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: web, uid: "4711"}
spec:
  resourceClaims: [{name: fast, resourceClaimTemplateName: one-gpu}, {name: shared, resourceClaimName: gpus}]
  containers:
  - name: main
    image: i:1
    resources: {claims: [{name: fast}, {name: shared, request: gpu}]}
"""


def parts(path: str) -> list[Any]:
    found: list[Any] = []
    for word in path.split("."):
        name, *indexes = word.split("[")
        found += [name, *(int(index.rstrip("]")) for index in indexes)]
    return found


def changed(text: str, path: str, value: str) -> str:
    """With another value at a path, as YAML's flow style has it; `-` takes it away."""
    document = yaml.load(text, yaml.CSafeLoader)
    *parents, last = parts(path)
    holder: Any = document
    for part in parents:
        holder = holder.setdefault(part, {}) if isinstance(holder, dict) else holder[int(part)]
    if value == "-":
        del holder[last]
    elif isinstance(holder, list) and int(last) == len(holder):
        holder.append(yaml.safe_load(value))
    else:
        holder[last] = yaml.safe_load(value) if not path.endswith("expression") else value.strip('"')
    return str(yaml.dump(document, Dumper=yaml.CSafeDumper, sort_keys=False))
