# SPDX-License-Identifier: Apache-2.0
"""Defaults that depend on the host: they fill keys that document.py leaves empty, from facts of the caller."""

from dataclasses import replace

import msgspec

from agent.config.document import COMES_WITH, PLANES, Configuration

DEFAULT_STATE_DIRECTORY = "/var/lib/kepd"
DEFAULT_RUN_DIRECTORY = "/run/kepd"


class HostFacts(msgspec.Struct, frozen=True, kw_only=True):
    host_name: str
    state_directory: str = ""
    run_directory: str = ""
    is_in_cluster: bool = False


def fill_defaults(configuration: Configuration, facts: HostFacts) -> Configuration:
    node = configuration.node
    state = node.state_directory or facts.state_directory or DEFAULT_STATE_DIRECTORY
    run = node.run_directory or facts.run_directory or DEFAULT_RUN_DIRECTORY
    in_cluster = bool(configuration.kubernetes.kubeconfig) or facts.is_in_cluster
    proxy, images = configuration.proxy, configuration.images
    is_asked = images.enabled if images.enabled != "auto" else configuration.pods.enabled or proxy.enabled
    return replace(
        configuration,
        images=replace(images, enabled=is_asked),
        node=replace(node, name=node.name or facts.host_name, state_directory=state, run_directory=run),
        runtime=replace(
            configuration.runtime, image_endpoint=configuration.runtime.image_endpoint or configuration.runtime.endpoint
        ),
        api=replace(configuration.api, socket=configuration.api.socket or f"{run}/kepd.sock"),
        pods=replace(
            configuration.pods,
            directory=configuration.pods.directory or f"{state}/pods",
            claim_directory=configuration.pods.claim_directory or f"{state}/claims",
        ),
        proxy=replace(
            proxy,
            socket=proxy.socket or f"{run}/cri/cri.sock",
            link=f"{run}/cri/kubelet.sock" if proxy.link is None else proxy.link,
        ),
        services=replace(
            configuration.services,
            source=configuration.services.source or ("kubernetes" if in_cluster else "manifests"),
        ),
    )


def enabled_planes(configuration: Configuration) -> tuple[str, ...]:
    """Those that are on, and that which they come with as well."""
    on = [plane for plane in PLANES if getattr(configuration, plane).enabled]
    return tuple(plane for plane in on if COMES_WITH.get(plane, plane) in on)
