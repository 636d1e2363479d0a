# SPDX-License-Identifier: Apache-2.0
"""`/configz` beside the metrics of Services, where kube-proxy has it (HL-7).

It shows what concerns Services and never other planes' parts, for anybody on this node may ask.
"""

import json

from agent.api.http import Page
from agent.config.document import Configuration
from agent.config.reference import as_document

SHOWN = ("apiVersion", "kind", "node", "kubernetes", "services", "telemetry")


def configz_page(configuration: Configuration) -> Page:
    document = as_document(configuration)
    shown = {"config.kepd.dev": {name: document[name] for name in SHOWN if name in document}}
    return Page(200, json.dumps(shown).encode(), "application/json")
