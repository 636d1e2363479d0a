# SPDX-License-Identifier: Apache-2.0
"""Manifests as commands take them with `-f`: files, directories and standard input, checked before they are sent."""

import json
import sys
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import click
import msgspec

from agent.cli.client import Client
from agent.cli.session import CommandFailed, content_of
from agent.config.strict_yaml import UnreadableYaml
from agent.kinds.kind import Kind, Named
from agent.kinds.registry import BY_API
from agent.model.exit_codes import FAILURE, NOT_FOUND, USAGE
from agent.model.finding import Finding
from agent.objects.decoding import PREPARED
from agent.objects.documents import ManifestObject, read_objects, without
from agent.wire.kepd.v1 import object_pb2 as pb

SERVICE = "kepd.v1.ObjectService"
STDIN = "-"
SUFFIXES = (".yaml", ".yml", ".json")
# Less than the least that a caller may send at once, so that one without rights reads just that.
PART_BYTES = 32 << 10

file_option = click.option(
    "-f", "--file", "paths", multiple=True, metavar="FILE|DIR|-",
    help="Manifests; - is standard input. May be given again.",
)  # fmt: skip


class ManifestFile(msgspec.Struct, frozen=True):
    """Its content is UTF-8; PowerShell writes what a command prints as UTF-16."""

    path: str
    content: bytes

    def __post_init__(self) -> None:
        if self.content.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
            with suppress(UnicodeDecodeError):
                msgspec.structs.force_setattr(self, "content", self.content.decode("utf-16").encode())


class CheckedFile(msgspec.Struct, frozen=True):
    """What is in a file. With findings it cannot be applied."""

    path: str
    objects: Sequence[ManifestObject] = ()
    findings: Sequence[Finding] = ()
    warnings: Sequence[Finding] = ()
    foreign: Sequence[Finding] = ()
    """Kinds that are not carried out here."""


def read_files(paths: Sequence[str]) -> list[ManifestFile]:
    if not paths:
        raise CommandFailed("no file is named; expected a file, a directory or -, also behind -f", USAGE)
    found = [one for path in paths for one in _read(path)]
    if not found:
        raise CommandFailed(f"no manifest is in {', '.join(paths)}; they end in {', '.join(SUFFIXES)}", NOT_FOUND)
    return found


def _read(path: str) -> Iterator[ManifestFile]:
    if path == STDIN:
        yield ManifestFile("standard input", sys.stdin.buffer.read())
        return
    place = Path(path)
    try:
        inside = sorted(one for one in place.iterdir() if one.suffix in SUFFIXES and not one.name.startswith("."))
    except NotADirectoryError:
        inside = [place]
    except FileNotFoundError as error:
        raise CommandFailed(f"{path}: there is no such file", USAGE) from error
    for one in inside:
        yield ManifestFile(str(one), content_of(one))


def check_file(file: ManifestFile) -> CheckedFile:
    """As the daemon would."""
    from agent.objects.all_readings import check_manifest

    with PREPARED.holding(file.content, file.path):
        read = check_manifest(file.path, file.content, None)
        findings = list(dict.fromkeys(complaint.finding for complaint in read.complaints))
        try:
            objects = read_objects(file.path, file.content)
        except UnreadableYaml as error:
            return CheckedFile(file.path, findings=list(dict.fromkeys((*findings, error.finding))))
    if not objects and not findings:
        findings = [Finding(file.path, "", "has no object")]
    warnings = [warning for warning in read.warnings if warning.path]
    places = {remark.where for remark in read.foreign}
    own = [found for found in objects if found.where not in places or found.key in read.objects]
    return CheckedFile(file.path, own, findings, warnings, read.foreign)


def checked_files(paths: Sequence[str], *, allows_foreign: bool = False) -> list[ManifestFile]:
    return without_fault(read_files(paths), allows_foreign=allows_foreign)


def without_fault(files: list[ManifestFile], *, allows_foreign: bool = False) -> list[ManifestFile]:
    """Warnings go to standard error; any fault ends the command, after all files were looked at. `allows_foreign`:
    what is not carried out here is left out, and told of."""
    checks = [check_file(file) for file in files]
    for one in (warning for check in checks for warning in check.warnings):
        click.echo(f"{one.where}: {one.path}: warning: {one.text}", err=True)
    findings = [str(one) for check in checks for one in check.findings]
    foreign = [str(remark) for check in checks for remark in check.foreign]
    if findings or (foreign and not allows_foreign):
        raise CommandFailed("\n".join((*findings, *foreign)), FAILURE)
    if foreign and not any(check.objects for check in checks):
        raise CommandFailed("\n".join((*foreign, "nothing is left that is carried out here")), FAILURE)
    for remark in foreign:
        click.echo(f"{remark}; it is left out", err=True)
    pairs = zip(files, checks, strict=True)
    return [_without_foreign(file, check) if check.foreign else file for file, check in pairs if check.objects]


def _without_foreign(file: ManifestFile, check: CheckedFile) -> ManifestFile:
    own = {found.key for found in check.objects}
    content = file.content
    while (found := next((each for each in read_objects(file.path, content) if each.key not in own), None)) is not None:
        content = without(file.path, content, found)
    return ManifestFile(file.path, content)


def joined(files: Sequence[ManifestFile]) -> bytes:
    return b"\n---\n".join(file.content for file in files)


def send_objects(
    daemon: Client, content: bytes, *, dry_run: bool = False, create_only: bool = False, version: str = ""
) -> Sequence[pb.AppliedObject]:
    """`version`: of the manifest that the content was made from."""
    parts = [
        pb.ApplyRequest(
            content=content[at : at + PART_BYTES], dry_run=dry_run, create_only=create_only, version=version
        )
        for at in range(0, len(content) or 1, PART_BYTES)
    ]
    return daemon.send(f"{SERVICE}/Apply", parts, pb.ApplyResponse).objects


def send_patch(
    daemon: Client, kind: Kind, named: Named, patch: object, how: str, *, dry_run: bool = False, version: str = ""
) -> pb.AppliedObject:
    """`how`: strategic, merge or json."""
    request = pb.PatchRequest(
        kind=kind.api, namespace=named.namespace, name=named.name, type=f"PATCH_TYPE_{how.upper()}",
        patch=json.dumps(patch).encode(), dry_run=dry_run, version=version,
    )  # fmt: skip
    return daemon.call(f"{SERVICE}/Patch", request, pb.PatchResponse).object


def told_dry(dry_run: str) -> str:
    return " (dry run)" if dry_run != "none" else ""


def called(kind: str, namespace: str, name: str) -> str:
    """As `-o name` has it."""
    known = BY_API.get(kind)
    return "/".join(filter(None, (known.singular if known is not None else kind.lower(), namespace, name)))
