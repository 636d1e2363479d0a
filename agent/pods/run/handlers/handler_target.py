# SPDX-License-Identifier: Apache-2.0
"""The container that a hook or a probe is for, and what its handler asks there."""

import msgspec

from agent.model.pods.container_fields import HttpGet
from agent.model.pods.http_question import HttpQuestion
from agent.model.pods.pod import ContainerSpec


class ContainerTarget(msgspec.Struct, frozen=True):
    container: ContainerSpec
    instance_id: str
    ip: str


def port_number(container: ContainerSpec, port: int | str) -> int:
    """A port by number, or by the name it has in this container. Raises ValueError."""
    if isinstance(port, int):
        return port
    for one in container.fields.ports:
        if one.name == port:
            return one.container_port
    if port.isdecimal():
        return int(port)
    raise ValueError(f"couldn't find port: {port!r} in container {container.name}")


def http_question(given: HttpGet, target: ContainerTarget, agent: str) -> HttpQuestion:
    """As a kubelet asks, for a hook or a probe: an Accept header without a value takes its default away."""
    names = {one.name.lower() for one in given.http_headers}
    headers = [(one.name, one.value) for one in given.http_headers if one.name.lower() != "accept" or one.value]
    if "user-agent" not in names:
        headers.append(("User-Agent", agent))
    if "accept" not in names:
        headers.append(("Accept", "*/*"))
    return HttpQuestion(
        host=given.host or target.ip,
        port=port_number(target.container, given.port),
        path=given.whole_path,
        is_tls=given.scheme == "HTTPS",
        headers=headers,
    )
