# SPDX-License-Identifier: Apache-2.0
"""Names of images: parsing, the normalised form, and the spellings that different readers want.

Source of behaviour: distribution `reference` and kubernetes `pkg/util/parsers`.
"""

import re

import msgspec

from agent.model.images.text import quoted

HUB = "docker.io"
HUB_LEGACY = "index.docker.io"
OFFICIAL = "library/"
LONGEST_PATH = 255
LATEST = "latest"

_COMPONENT = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_LABEL = r"(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])"
_HOST = rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?"
_DIGEST = r"[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}"
HOST = re.compile(_HOST)
NAME = re.compile(rf"(?:(?P<host>{_HOST})/)?(?P<path>{_COMPONENT}(?:/{_COMPONENT})*)")
_TAG = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
REFERENCE = re.compile(rf"(?P<name>{NAME.pattern})(?::(?P<tag>{_TAG}))?(?:@(?P<digest>{_DIGEST}))?")
BARE_DIGEST = re.compile(r"[a-f0-9]{64}")
HEX_LENGTHS = {"sha256": 64, "sha384": 96, "sha512": 128}


class ReferenceInvalid(ValueError):
    """The text is not an image name. The message is the one a kubelet gives; `cause` is its last part."""

    def __init__(self, text: str, cause: str) -> None:
        super().__init__(f"couldn't parse image name {quoted(text)}: {cause}")
        self.cause = cause


class ImageReference(msgspec.Struct, frozen=True):
    """A parsed name. `tag` and `digest` are empty unless written; `registry` is empty where the grammar takes a host
    for a part of the path, as one with an underscore."""

    written: str
    registry: str
    path: str
    tag: str
    digest: str

    @property
    def repo(self) -> str:
        """Registry and path, without tag and digest: what credentials and records go by."""
        return f"{self.registry}/{self.path}" if self.registry else self.path

    @property
    def asked_host(self) -> str:
        """Where the runtime asks for it: the first part, whatever the grammar takes that for."""
        return self.registry or self.path.partition("/")[0]

    @property
    def asked_path(self) -> str:
        """What it asks there for."""
        return self.path if self.registry else self.path.partition("/")[2]

    @property
    def effective_tag(self) -> str:
        """The tag that is meant: `latest` where neither tag nor digest is written."""
        return self.tag or ("" if self.digest else LATEST)

    @property
    def cri_image(self) -> str:
        """What goes to the runtime: as written, with the default tag if it has to be."""
        return self.written if self.tag or self.digest else f"{self.written}:{LATEST}"

    @property
    def runtime_ref(self) -> str:
        """The name under which containerd keeps it; a digest makes it drop the tag."""
        return f"{self.repo}@{self.digest}" if self.digest else f"{self.repo}:{self.effective_tag}"

    def __str__(self) -> str:
        return self.runtime_ref


def parse_reference(text: str) -> ImageReference:
    """Parse a name as written in a pod. Raises ReferenceInvalid."""
    if BARE_DIGEST.fullmatch(text):
        raise ReferenceInvalid(text, f"invalid repository name ({text}), cannot specify 64-byte hexadecimal strings")
    registry, rest = _split_registry(text)
    repository = rest.partition(":")[0]
    if repository.lower() != repository:
        raise ReferenceInvalid(text, f"invalid reference format: repository name ({repository}) must be lowercase")
    host, path, tag, digest = _parse(text, f"{registry}/{rest}")
    return ImageReference(text, host, path, tag, digest)


def is_registry(text: str) -> bool:
    """Whether an image name could have it as its host."""
    return len(text) <= LONGEST_PATH and HOST.fullmatch(text) is not None


def default_policy(text: str) -> str:
    """The imagePullPolicy of a container that names none. A name that does not parse counts as not `latest`."""
    try:
        tag = parse_reference(text).effective_tag
    except ReferenceInvalid:
        return "IfNotPresent"
    return "Always" if tag == LATEST else "IfNotPresent"


def record_key(text: str) -> str:
    """The written text without tag and digest, not normalised: how a kubelet's own records name a repository."""
    host, path, _tag, _digest = _parse(text, text)
    return f"{host}/{path}" if host else path


def _split_registry(text: str) -> tuple[str, str]:
    first, slash, rest = text.partition("/")
    if not slash:
        return HUB, OFFICIAL + text
    if first == HUB_LEGACY:
        registry = HUB
    elif first == "localhost" or "." in first or ":" in first or first.lower() != first:
        registry = first
    else:
        registry, rest = HUB, text
    return registry, (OFFICIAL + rest if registry == HUB and "/" not in rest else rest)


def _parse(written: str, text: str) -> tuple[str, str, str, str]:
    found = REFERENCE.fullmatch(text)
    if found is None:
        if not text:
            cause = "repository name must have at least one component"
        elif REFERENCE.fullmatch(text.lower()):
            cause = "repository name must be lowercase"
        else:
            cause = "invalid reference format"
        raise ReferenceInvalid(written, cause)
    if len(found["path"]) > LONGEST_PATH:
        raise ReferenceInvalid(written, f"repository name must not be more than {LONGEST_PATH} characters")
    digest = found["digest"] or ""
    if digest:
        _check_digest(written, digest)
    return found["host"] or "", found["path"], found["tag"] or "", digest


def _check_digest(written: str, digest: str) -> None:
    algorithm, _, encoded = digest.partition(":")
    length = HEX_LENGTHS.get(algorithm)
    if length is None:
        well_formed = re.fullmatch(r"[a-z0-9]+(?:[.+_-][a-z0-9]+)*", algorithm)
        raise ReferenceInvalid(
            written, "unsupported digest algorithm" if well_formed else "invalid checksum digest format"
        )
    if len(encoded) != length:
        raise ReferenceInvalid(written, "invalid checksum digest length")
    if encoded.lower() != encoded:
        raise ReferenceInvalid(written, "invalid checksum digest format")
