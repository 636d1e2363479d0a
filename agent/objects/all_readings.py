# SPDX-License-Identifier: Apache-2.0
"""How all kinds are read, whichever planes run here: for those who check a manifest before it is in force."""

from collections.abc import Iterator
from importlib import import_module

from agent.config.document import Configuration
from agent.kinds.registry import BY_WRITTEN, MANIFEST_KINDS
from agent.model.finding import Finding
from agent.objects.plain_kinds import PLAIN_READING
from agent.objects.reading import FileRead, Reading, Readings, read_file


def check_manifest(path: str, content: bytes, configuration: Configuration | None) -> FileRead:
    """With all that would keep an object from being carried out. `configuration` None: of no node in particular."""
    return read_file(path, content, Readings(_readings(configuration)), MANIFEST_KINDS, is_strict=True)


def faults_of(content: bytes, configuration: Configuration) -> list[Finding]:
    file = check_manifest("manifest", content, configuration)
    return list(dict.fromkeys(complaint.finding for complaint in file.complaints))


def _readings(configuration: Configuration | None) -> Iterator[Reading]:
    """Imported with the first who asks: a daemon without pods pays nothing for them."""
    for name in dict.fromkeys(kind.read_by for kind in BY_WRITTEN.values() if kind.read_by):
        try:
            module = import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise
            continue
        yield module.reading_for(configuration)
    yield PLAIN_READING
