# SPDX-License-Identifier: Apache-2.0
"""Reads the list of credential provider plugins from CredentialProviderConfig documents, with all complaints at once.

Source of behaviour: kubernetes `pkg/credentialprovider/plugin/config.go`, kubelet.config.k8s.io/v1.
"""

from collections.abc import Mapping, Sequence

import msgspec
import yaml

from agent.config.kinds import DURATION, Wrong
from agent.images.access.match_key import KeyInvalid, parse_key
from agent.model.finding import Finding, shown, suggestion

GROUP = "credentialprovider.kubelet.k8s.io"
API_VERSIONS = tuple(f"{GROUP}/{version}" for version in ("v1", "v1beta1", "v1alpha1"))
CONFIG_VERSIONS = tuple(f"kubelet.config.k8s.io/{version}" for version in ("v1", "v1beta1", "v1alpha1"))
KIND = "CredentialProviderConfig"
PROVIDER_KEYS = ("name", "matchImages", "defaultCacheDuration", "apiVersion", "args", "env", "tokenAttributes")


class Provider(msgspec.Struct, frozen=True, kw_only=True):
    """One plugin. Its environment is kept out of its repr."""

    name: str
    patterns: tuple[str, ...]
    default_cache_s: float
    api_version: str
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        return f"Provider({self.name})"


def read_providers(documents: Sequence[tuple[str, bytes]]) -> tuple[tuple[Provider, ...], tuple[Finding, ...]]:
    """The providers of all documents (name and content, in order), and what is wrong with them."""
    findings: list[Finding] = []
    providers: list[Provider] = []
    for where, content in documents:
        try:
            document = yaml.load(content, Loader=yaml.CSafeLoader)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            line = f":{mark.line + 1}" if mark is not None else ""
            findings.append(Finding(f"{where}{line}", "", "is neither JSON nor YAML"))
            continue
        providers += _ConfigReader(where, findings).document(document)
    names = [provider.name for provider in providers]
    twice = sorted({name for name in names if names.count(name) > 1})
    findings += [Finding("", f"providers.{name}", "is given more than once") for name in twice]
    return tuple(providers), tuple(findings)


class _ConfigReader:
    def __init__(self, where: str, findings: list[Finding]) -> None:
        self._where = where
        self._findings = findings

    def wrong(self, path: str, text: str) -> None:
        self._findings.append(Finding(self._where, path, text))

    def mapping(self, value: object, path: str, known: Sequence[str]) -> Mapping[str, object]:
        if not isinstance(value, dict):
            self.wrong(path, "is not a map")
            return {}
        for key in value:
            if key not in known:
                self.wrong(f"{path}.{key}".lstrip("."), f"unknown key{suggestion(str(key), known)}")
        return value

    def document(self, value: object) -> list[Provider]:
        fields = self.mapping(value, "", ("apiVersion", "kind", "providers"))
        if fields.get("apiVersion") not in CONFIG_VERSIONS:
            self.wrong("apiVersion", f"{shown(fields.get('apiVersion'))} is none of {', '.join(CONFIG_VERSIONS)}")
        if fields.get("kind") != KIND:
            self.wrong("kind", f"{shown(fields.get('kind'))} is not {KIND}")
        listed = fields.get("providers")
        if not isinstance(listed, list) or not listed:
            self.wrong("providers", "is not a list with at least one provider")
            return []
        found = (self.provider(one, f"providers[{position}]") for position, one in enumerate(listed))
        return [one for one in found if one is not None]

    def provider(self, value: object, path: str) -> Provider | None:
        fields = self.mapping(value, path, PROVIDER_KEYS)
        name = self.text(fields, path, "name")
        if not name or name in (".", "..") or "/" in name or any(map(str.isspace, name)):
            self.wrong(f"{path}.name", f"{shown(name)} is not the name of a file in the plugin directory")
        version = self.text(fields, path, "apiVersion")
        if version not in API_VERSIONS:
            self.wrong(f"{path}.apiVersion", f"{shown(version)} is none of {', '.join(API_VERSIONS)}")
        if "tokenAttributes" in fields:
            self.wrong(f"{path}.tokenAttributes", "kepd gets no tokens of service accounts; this provider is left out")
            return None
        return Provider(
            name=name,
            patterns=self.patterns(fields, path),
            default_cache_s=self.duration(fields, path),
            api_version=version,
            args=self.words(fields, path, "args"),
            env=self.env(fields, path),
        )

    def patterns(self, fields: Mapping[str, object], path: str) -> tuple[str, ...]:
        words = self.words(fields, path, "matchImages")
        if not words:
            self.wrong(f"{path}.matchImages", "needs at least one pattern")
        for word in words:
            try:
                parse_key(word)
            except KeyInvalid as error:
                self.wrong(f"{path}.matchImages", f"{shown(word)} {error}")
        return words

    def duration(self, fields: Mapping[str, object], path: str) -> float:
        try:
            value = DURATION.read(fields.get("defaultCacheDuration"))
        except Wrong as error:
            self.wrong(f"{path}.defaultCacheDuration", str(error))
            return 0.0
        return value if isinstance(value, float) else 0.0

    def env(self, fields: Mapping[str, object], path: str) -> tuple[tuple[str, str], ...]:
        listed = fields.get("env") or []
        if not isinstance(listed, list):
            self.wrong(f"{path}.env", "is not a list of name and value")
            return ()
        pairs = []
        for position, one in enumerate(listed):
            place = f"{path}.env[{position}]"
            entry = self.mapping(one, place, ("name", "value"))
            pairs.append((self.text(entry, place, "name"), self.text(entry, place, "value")))
        return tuple(pairs)

    def text(self, fields: Mapping[str, object], path: str, name: str) -> str:
        value = fields.get(name, "")
        if not isinstance(value, str):
            self.wrong(f"{path}.{name}", "is not text")
            return ""
        return value

    def words(self, fields: Mapping[str, object], path: str, name: str) -> tuple[str, ...]:
        value = fields.get(name) or []
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            self.wrong(f"{path}.{name}", "is not a list of texts")
            return ()
        return tuple(value)
