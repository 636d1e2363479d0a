# SPDX-License-Identifier: Apache-2.0
"""Whether the values in a Pod manifest can be carried out: the whole list of what is wrong."""

from agent.pods.manifest.validation.complaint import Complaint
from agent.pods.manifest.validation.pod import check_pod, warnings_about
from agent.pods.manifest.validation.resources import where_claimed

__all__ = ["Complaint", "check_pod", "warnings_about", "where_claimed"]
