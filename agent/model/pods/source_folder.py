# SPDX-License-Identifier: Apache-2.0
"""A ConfigMap or Secret as a directory with one file per key, the way it was found."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from agent.model.finding import Finding

# The directory below the manifests, and the kind of what stands in it.
SOURCE_FOLDERS = {"configmaps": "ConfigMap", "secrets": "Secret"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFolder:
    """`problems` are keys that could not be read; then `values` lacks them. `exposed` is what others than root see.
    Values are in no text that is made of it."""

    kind: str
    namespace: str
    name: str
    path: str
    values: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    problems: tuple[Finding, ...] = ()
    exposed: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.kind, self.namespace, self.name
