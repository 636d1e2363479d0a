# SPDX-License-Identifier: Apache-2.0
"""Reads the file that `kepctl debug --custom` is given: some fields of a container, each of them right or refused."""

import msgspec

from agent.config.shape import Shape
from agent.config.strict_yaml import UnreadableYaml, parse_documents
from agent.model.finding import Finding
from agent.model.pods.container_fields import Container
from agent.model.refused import Refused

# The command line says these.
ELSEWHERE = ("name", "image", "command", "stdin", "tty")
# Kubernetes gives an ephemeral container none of these.
NEVER = (
    "ports", "resources", "resizePolicy", "restartPolicy", "restartPolicyRules", "volumeDevices", "livenessProbe",
    "readinessProbe", "startupProbe", "lifecycle",
)  # fmt: skip


def read_container_part(content: bytes, source: str) -> Container:
    """JSON or YAML. Raises Refused with everything that is wrong."""
    try:
        documents, findings = parse_documents(content, source)
    except UnreadableYaml as error:
        raise Refused("invalid", str(error)) from error
    if len(documents) != 1:
        raise Refused("invalid", f"{source}: {len(documents)} documents; expected one, with fields of a container")
    value = Shape(findings).read(documents[0], Container, "")
    for name, tree in documents[0].entries.items():
        if name in ELSEWHERE:
            findings.append(Finding(tree.where, name, "is given on the command line, and not in this file"))
        elif name in NEVER:
            findings.append(Finding(tree.where, name, "an ephemeral container has no such thing"))
    if findings:
        raise Refused("invalid", "; ".join(map(str, findings)))
    return msgspec.convert(value, Container)
