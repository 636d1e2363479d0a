# SPDX-License-Identifier: Apache-2.0
"""A configuration file of a former version in the form of this one: only what differs changes, so comments stay."""

import re

from agent.config.check import former_form
from agent.config.document import API_VERSION, FORMER_VERSIONS
from agent.config.strict_yaml import UnreadableYaml, parse_documents

VERSION = re.compile(rf"^(apiVersion\s*:\s*)([\"']?)(?:{'|'.join(map(re.escape, FORMER_VERSIONS))})\2", re.MULTILINE)


def migrated(content: bytes, where: str) -> bytes:
    """Raises UnreadableYaml, also for one that has its version where only a person finds it."""
    documents, _ = parse_documents(content, where)
    former = [finding for one in documents for finding in former_form(one)]
    if not former:
        return content
    new, count = VERSION.subn(rf"\1\g<2>{API_VERSION}\2", content.decode(), count=1)
    if not count:
        raise UnreadableYaml(former[0])
    return new.encode()
