# SPDX-License-Identifier: Apache-2.0
"""What the planes say about configuration: values that fail only together, patterns, expressions."""

from agent.config.document import Configuration
from agent.config.sources import FurtherCheck
from agent.images.settings import image_faults
from agent.model.finding import Finding
from agent.services.settings_check import services_faults

__all__ = ["PLANE_CHECKS"]


def check_images(configuration: Configuration) -> list[Finding]:
    """The images plane's."""
    return list(image_faults(configuration.images))


def check_services(configuration: Configuration) -> list[Finding]:
    """The services plane's."""
    return list(services_faults(configuration.services))


PLANE_CHECKS: tuple[FurtherCheck, ...] = (check_images, check_services)
