# SPDX-License-Identifier: Apache-2.0
"""What the planes say about configuration: values that fail only together, patterns, expressions."""

import os

from agent.config.document import Configuration
from agent.config.sources import FurtherCheck
from agent.daemon.in_pod_check import in_pod_faults
from agent.images.settings import image_faults
from agent.model.finding import Finding
from agent.pods.settings_check import pods_faults
from agent.proxy.settings_check import proxy_faults
from agent.services.settings_check import services_faults

__all__ = ["PLANE_CHECKS"]


def check_images(configuration: Configuration, given: frozenset[str]) -> list[Finding]:
    return list(image_faults(configuration.images, given))


def check_services(configuration: Configuration, _given: frozenset[str]) -> list[Finding]:
    found = list(services_faults(configuration.services))
    if configuration.services.counters.export and not configuration.telemetry.per_service:
        text = "exports a series for each Service and needs telemetry.perService: true"
        found.append(Finding("", "services.counters.export", text))
    return found


def check_proxy(configuration: Configuration, _given: frozenset[str]) -> list[Finding]:
    return list(proxy_faults(configuration))


def check_pods(configuration: Configuration, _given: frozenset[str]) -> list[Finding]:
    return list(pods_faults(configuration.pods))


def check_place(configuration: Configuration, _given: frozenset[str]) -> list[Finding]:
    """What cannot work where this process runs."""
    return list(in_pod_faults(configuration, os.environ))


PLANE_CHECKS: tuple[FurtherCheck, ...] = (check_images, check_pods, check_proxy, check_services, check_place)
