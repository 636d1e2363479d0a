# SPDX-License-Identifier: Apache-2.0
"""Values of `devices.` that the document's own checks cannot see: those of pools, and those wrong only together."""

from collections.abc import Iterator

from agent.config.document import Configuration
from agent.model.finding import Finding, shown
from kepd_devices.local.pool_rules import Command, PoolRule, read_resets, read_rules
from kepd_devices.manifest.faults import LONGEST_DRIVER, is_subdomain
from kepd_devices.plan.plugins.plugin_choice import resource_fault

FRONT = "devices.front.resources"


def device_faults(configuration: Configuration) -> Iterator[Finding]:
    devices = configuration.devices
    for name, part in (("manager", devices.manager), ("plugins", devices.plugins)):
        if part.enabled and not configuration.pods.enabled:
            text = "true needs pods.enabled: true; devices are given to the pods of manifests"
            yield Finding("", f"devices.{name}.enabled", text)
    if devices.api.enabled and not devices.manager.enabled:
        yield Finding("", "devices.api.enabled", "true needs devices.manager.enabled: true; it tells of its claims")
    if devices.api.enabled and not devices.api.address:
        yield Finding("", "devices.api.address", "is empty; expected host:port, such as 127.0.0.1:10244")
    driver = devices.driver
    if driver.name and ("." not in driver.name or not is_subdomain(driver.name, LONGEST_DRIVER)):
        text = f"{shown(driver.name)} is no name of a driver; expected a DNS name such as devices.example.com"
        yield Finding("", "devices.driver.name", text)
    yield from read_rules(driver.pools)[1]
    yield from read_resets(devices.plugins.reset)[1]
    yield from read_resets(devices.front.resources, FRONT)[1]
    for resource in devices.front.resources:
        if why := resource_fault(resource):
            yield Finding("", FRONT, why)
    if devices.front.enabled and (devices.manager.enabled or devices.plugins.enabled):
        text = "true is for a node with a kubelet; devices.manager and devices.plugins give devices without one"
        yield Finding("", "devices.front.enabled", text)


def plugin_resets(configuration: Configuration) -> dict[str, Command]:
    """Of a configuration without faults."""
    return read_resets(configuration.devices.plugins.reset)[0]


def front_resets(configuration: Configuration) -> dict[str, Command]:
    """Of a configuration without faults."""
    return read_resets(configuration.devices.front.resources, FRONT)[0]


def pool_rules(configuration: Configuration) -> list[PoolRule]:
    """Of a configuration without faults."""
    return read_rules(configuration.devices.driver.pools)[0]
