# SPDX-License-Identifier: Apache-2.0
"""What the planes say about configuration: values that fail only together, patterns, expressions."""

from agent.config.document import Configuration
from agent.config.sources import FurtherCheck
from agent.images.settings import image_faults
from agent.model.finding import Finding

__all__ = ["PLANE_CHECKS"]


def check_images(configuration: Configuration) -> list[Finding]:
    """The images plane's."""
    return list(image_faults(configuration.images))


PLANE_CHECKS: tuple[FurtherCheck, ...] = (check_images,)
