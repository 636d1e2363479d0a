# SPDX-License-Identifier: Apache-2.0
"""Objects of the manifest directory, for those who look and those who change them."""

import msgspec


class ListedObject(msgspec.Struct, frozen=True, kw_only=True):
    """`content` is JSON, for who may only read without values; `source` its file and line; `version` is another after
    each change of what the file says."""

    kind: str
    namespace: str
    name: str
    content: bytes
    source: str
    version: str = ""

    @property
    def place(self) -> str:
        return f"{self.kind}/{self.namespace}/{self.name}"


class AppliedObject(msgspec.Struct, frozen=True, kw_only=True):
    """`result` is created, configured or unchanged; `diff` says how it differs from what was there."""

    kind: str
    namespace: str
    name: str
    result: str
    path: str
    version: str = ""
    diff: str = ""
