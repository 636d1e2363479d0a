# SPDX-License-Identifier: Apache-2.0
"""Runs the cases of image-refs.json against the names, credentials, patterns and allowlists of the images plane.

Owns: the translation between the JSON of the vectors and the value types. The file keeps its cases in four lists with
what is expected among the fields of the case, so `cases` splits them for the runner.
Never: computes anything that a case expects. All of them describe a kubelet, so our own extensions are off.
"""

from collections.abc import Iterator

from agent.images.access.dockerconfig import BAD_AUTH, ConfigInvalid, entries_for, read_config_file, secret_ring
from agent.images.access.grants import allowlist_fault, is_allowed
from agent.images.access.match_key import KeyInvalid, parse_key
from agent.model.images.credential import Credential, PullSecret, SecretId, SecretText
from agent.model.images.reference import ImageReference, ReferenceInvalid, default_policy, parse_reference, record_key

KINDS = frozenset({"ref", "cred", "glob", "allow"})

INPUTS = {
    "refs": ("ref", ("ref",)),
    "creds": ("cred", ("secrets", "node_auths", "image")),
    "globs": ("glob", ("glob", "target")),
    "allow": ("allow", ("allowlist", "image")),
}
GO_BASE64_ERROR = "illegal base64 data at input byte "


def cases(document: dict) -> Iterator[tuple[str, str, dict, dict]]:
    """Name, kind, input and expected outcome of everything in a file."""
    for section, (kind, inputs) in INPUTS.items():
        for case in document.get(section, ()):
            given = {name: case[name] for name in inputs if name in case}
            expect = {name: value for name, value in case.items() if name not in (*inputs, "id", "note")}
            yield case["id"], kind, given, expect


def check(kind: str, given: dict, expect: dict) -> None:
    """Raises AssertionError with one line per difference."""
    actual = RUNNERS[kind](given)
    wanted = {name: _wanted(value) for name, value in expect.items()}
    differences = [
        f"{name}: expected {wanted.get(name, '(nothing)')!r}, got {actual.get(name, '(nothing)')!r}"
        for name in sorted({*wanted, *actual})
        if wanted.get(name) != actual.get(name)
    ]

    assert not differences, "\n".join(differences)


def _wanted(value: object) -> object:
    # Go has a second wording for an auth field that is not base64 at all; the rule has one for both (IMG-C02).
    return BAD_AUTH if isinstance(value, str) and value.startswith(GO_BASE64_ERROR) else value


def _familiar(found: ImageReference) -> str:
    """The short spelling that docker shows; kepd shows none."""
    name = found.repo
    if found.registry == "docker.io":
        short = found.path.removeprefix("library/")
        name = found.path if "/" in short else short
    return name + (f":{found.tag}" if found.tag else "") + (f"@{found.digest}" if found.digest else "")


def _ref(given: dict) -> dict:
    text = given["ref"]
    shown: dict = {"tag": "", "digest": "", "effective_tag": "", "default_policy": default_policy(text)}
    try:
        found = parse_reference(text)
    except ReferenceInvalid as error:
        shown |= {"ok": False, "error": str(error)}
    else:
        names = ("registry", "path", "repo", "tag", "digest", "effective_tag", "cri_image", "runtime_ref")
        shown |= {"ok": True, "familiar": _familiar(found), **{name: getattr(found, name) for name in names}}
    try:
        shown["record_key"] = record_key(text)
    except ReferenceInvalid as error:
        shown |= {"record_key": "", "record_key_error": error.cause}
    return shown


def _cred(given: dict) -> dict:
    repo = parse_reference(given["image"]).repo
    try:
        ring = secret_ring([_secret(one) for one in given.get("secrets", ())], is_strict=True)
    except ConfigInvalid as error:
        return {"lookup_name": repo, "error": str(error), "expect": []}
    node = read_config_file(_json({"auths": given.get("node_auths", {})}))
    found = [*entries_for(repo, ring.entries), *entries_for(repo, node)]
    return {"lookup_name": repo, "expect": [_credential(one) for one in found]}


def _json(value: object) -> bytes:
    import json

    return json.dumps(value).encode()


def _secret(given: dict) -> PullSecret:
    data = {key: SecretText(text) for key, text in given.get("data", {}).items()}
    return PullSecret(SecretId(given.get("namespace", ""), given["name"]), given.get("type", ""), data)


def _credential(one: Credential) -> dict:
    return {
        "username": one.username,
        "password": one.password.reveal(),
        "source": one.source,
        "credential_hash": one.hash(),
    }


def _glob(given: dict) -> dict:
    try:
        return {"match": parse_key(given["glob"]).covers(parse_key(given["target"]))}
    except KeyInvalid:
        return {"match": False, "error": True}


def _allow(given: dict) -> dict:
    faults = [fault for fault in map(allowlist_fault, given["allowlist"]) if fault]
    if faults:
        return {"config_error": faults[0]}
    return {"must_verify": not is_allowed(given["image"], given["allowlist"], is_normalised=False)}


RUNNERS = {"ref": _ref, "cred": _cred, "glob": _glob, "allow": _allow}
