# SPDX-License-Identifier: Apache-2.0
"""ConfigMaps and Secrets from directories with one file per key."""

from collections.abc import Iterator, Mapping, Sequence

from agent.model.finding import Finding
from agent.model.pods.source_folder import SourceFolder
from agent.pods.manifest.validation.complaint import DNS_SUBDOMAIN, Complaints
from agent.pods.manifest.validation.object_names import DATA_KEY_TEXT, is_data_key
from agent.pods.runtime.environment import EnvironmentSource

LONGEST_NAME = 253


def read_folder(folder: SourceFolder) -> tuple[EnvironmentSource | None, Sequence[Finding]]:
    """None with findings."""
    findings = (*_names(folder), *folder.problems, *_keys(folder))
    if findings:
        return None, findings
    source = EnvironmentSource(
        kind=folder.kind,
        namespace=folder.namespace,
        name=folder.name,
        data=folder.values,
        file=folder.path,
        source=folder.path,
        binary=_binary_keys(folder.values) if folder.kind == "ConfigMap" else frozenset(),
    )
    return source, ()


def _binary_keys(values: Mapping[str, bytes]) -> frozenset[str]:
    keys = set()
    for key, value in values.items():
        try:
            value.decode()
        except UnicodeDecodeError:
            keys.add(key)
    return frozenset(keys)


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
