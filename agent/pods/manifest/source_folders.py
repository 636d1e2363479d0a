# SPDX-License-Identifier: Apache-2.0
"""ConfigMaps and Secrets from directories with one file per key.

A directory with any fault keeps the source that it had, as a manifest does.
"""

from collections.abc import Iterator

import msgspec

from agent.model.finding import Finding
from agent.model.pods.source_folder import SourceFolder
from agent.pods.manifest.objects import binary_keys
from agent.pods.manifest.validation.complaint import DNS_SUBDOMAIN, Complaints
from agent.pods.manifest.validation.object_names import DATA_KEY_TEXT, is_data_key
from agent.pods.runtime.environment import EnvironmentSource

LONGEST_NAME = 253


class FolderReading(msgspec.Struct, frozen=True):
    """One directory. `source` is the last good one where there are findings, or None."""

    folder: SourceFolder
    source: EnvironmentSource | None
    findings: tuple[Finding, ...] = ()


def read_folder(folder: SourceFolder, before: FolderReading | None) -> FolderReading:
    if before is not None and before.folder == folder:
        return before
    findings = (*_names(folder), *folder.problems, *_keys(folder))
    if findings:
        return FolderReading(folder, before.source if before is not None else None, findings)
    source = EnvironmentSource(
        kind=folder.kind,
        namespace=folder.namespace,
        name=folder.name,
        data=folder.values,
        file=folder.path,
        source=folder.path,
        binary=binary_keys(folder.values) if folder.kind == "ConfigMap" else frozenset(),
    )
    return FolderReading(folder, source)


def _names(folder: SourceFolder) -> Iterator[Finding]:
    out = Complaints()
    out.label("namespace", folder.namespace)
    if len(folder.name) > LONGEST_NAME or not DNS_SUBDOMAIN.match(folder.name):
        text = "a lowercase RFC 1123 subdomain has lower case letters, digits, '-' and '.', as in 'example.com'"
        out.invalid("name", folder.name, text)
    return (Finding(folder.path, one.path, one.text) for one in out.found)


def _keys(folder: SourceFolder) -> Iterator[Finding]:
    for key in folder.values:
        if not is_data_key(key):
            text = f"is not the name of a key: {DATA_KEY_TEXT}; the last good content of its source stays valid"
            yield Finding(f"{folder.path}/{key}", "", text)
