# SPDX-License-Identifier: Apache-2.0
"""Manifests as commands take them with `-f`: files, directories and standard input, checked before they are sent."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import msgspec

from agent.cli.client import Client
from agent.cli.session import CommandFailed, content_of
from agent.config.strict_yaml import UnreadableYaml
from agent.kinds.registry import BY_API
from agent.model.exit_codes import FAILURE, NOT_FOUND, USAGE
from agent.model.finding import Finding
from agent.objects.decoding import PREPARED
from agent.objects.documents import ManifestObject, read_objects
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
    path: str
    content: bytes


class CheckedFile(msgspec.Struct, frozen=True):
    """What is in a file. With findings it cannot be applied."""

    path: str
    objects: Sequence[ManifestObject] = ()
    findings: Sequence[Finding] = ()
    warnings: Sequence[Finding] = ()


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
    return CheckedFile(file.path, objects, findings, [warning for warning in read.warnings if warning.path])


def checked_files(paths: Sequence[str]) -> list[ManifestFile]:
    return without_fault(read_files(paths))


def without_fault(files: list[ManifestFile]) -> list[ManifestFile]:
    """Warnings go to standard error; any fault ends the command, after all files were looked at."""
    checks = [check_file(file) for file in files]
    for one in (warning for check in checks for warning in check.warnings):
        click.echo(f"{one.where}: {one.path}: warning: {one.text}", err=True)
    findings = [str(one) for check in checks for one in check.findings]
    if findings:
        raise CommandFailed("\n".join(findings), FAILURE)
    return files


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


def told_dry(dry_run: str) -> str:
    return " (dry run)" if dry_run != "none" else ""


def called(kind: str, namespace: str, name: str) -> str:
    """As `-o name` has it."""
    known = BY_API.get(kind)
    return "/".join(filter(None, (known.singular if known is not None else kind.lower(), namespace, name)))
