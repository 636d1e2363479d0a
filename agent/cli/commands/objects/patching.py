# SPDX-License-Identifier: Apache-2.0
"""`kepctl patch`, `label` and `annotate`: changes of one object, without the rest of its manifest at hand."""

from collections.abc import Sequence
from typing import Any

import click

from agent.cli.client import connected
from agent.cli.commands.objects.objects import resolved
from agent.cli.completing import complete_objects
from agent.cli.objects.manifest_files import SERVICE, called, send_patch, told_dry
from agent.cli.objects.new_objects import dry_run_option
from agent.cli.objects.words import parse_wanted
from agent.cli.session import CommandFailed, Session
from agent.config.strict_yaml import UnreadableYaml, parse_documents, plain
from agent.kinds.kind import Kind
from agent.kinds.parts import part
from agent.model.exit_codes import USAGE
from agent.wire.kepd.v1 import object_pb2 as pb

TYPES = ("strategic", "merge", "json")


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="KIND NAME", shell_complete=complete_objects)
@click.option("-p", "--patch", "text", required=True, metavar="JSON|YAML", help="What changes.")
@click.option("--type", "how", type=click.Choice(TYPES), default=TYPES[0], show_default=True, help="How it is read.")
@dry_run_option
@click.pass_obj
def patch(session: Session, words: tuple[str, ...], text: str, how: str, dry_run: str) -> None:
    """Change fields of one object in its manifest."""
    kind, name = _one_object(words)
    change = _parsed(text.encode(), "patch")
    with connected(session) as daemon:
        named = resolved(daemon, kind, name, daemon.namespace)
        applied = send_patch(daemon, kind, named, change, how, dry_run=dry_run != "none")
    _say(applied, "patched", dry_run)


def _of_metadata(command: str, field: str, word: str, done: str) -> click.Command:
    @click.command(name=command, help=f"Set {word}s of one object in its manifest; KEY- takes one away.")
    @click.argument(
        "words", nargs=-1, required=True, metavar="KIND NAME KEY=VALUE|KEY-…", shell_complete=complete_objects
    )
    @click.option("--overwrite", is_flag=True, help=f"Also where a {word} has another value.")
    @dry_run_option
    @click.pass_obj
    def change(session: Session, words: tuple[str, ...], dry_run: str, *, overwrite: bool) -> None:
        values = dict(_value_of(each) for each in words if _is_change(each))
        if not values:
            raise CommandFailed(f"no {word} is named; expected KEY=VALUE, or KEY- to take one away", USAGE)
        kind, name = _one_object([each for each in words if not _is_change(each)])
        with connected(session) as daemon:
            named = resolved(daemon, kind, name, daemon.namespace)
            request = pb.GetManifestRequest(kind=kind.api, namespace=named.namespace, name=named.name)
            manifest = daemon.call(f"{SERVICE}/GetManifest", request, pb.GetManifestResponse)
            before = part(_parsed(manifest.content, manifest.source), "metadata", field)
            for key, value in values.items():
                if not overwrite and value is not None and before.get(key, value) != value:
                    text = f"the {word} {key} is {before[key]!r}; expected --overwrite to make it {value!r}"
                    raise CommandFailed(text, USAGE)
            patched = {"metadata": {field: values}}
            applied = send_patch(
                daemon, kind, named, patched, "merge", dry_run=dry_run != "none", version=manifest.version
            )
        _say(applied, done, dry_run)

    return change


label = _of_metadata("label", "labels", "label", "labeled")
annotate = _of_metadata("annotate", "annotations", "annotation", "annotated")


def _is_change(word: str) -> bool:
    return "=" in word or word.endswith("-")


def _value_of(word: str) -> tuple[str, str | None]:
    key, sign, value = word.partition("=")
    return (key, value) if sign else (word.removesuffix("-"), None)


def _one_object(words: Sequence[str]) -> tuple[Kind, str]:
    wanted = [(each.kind, name) for each in parse_wanted(words) for name in each.names]
    if len(wanted) != 1:
        raise CommandFailed("one object can be changed at a time; expected KIND NAME or KIND/NAME", USAGE)
    if not wanted[0][0].api:
        raise CommandFailed(f"{wanted[0][0].plural} have no manifest", USAGE)
    return wanted[0]


def _parsed(text: bytes, where: str) -> Any:  # noqa: ANN401  # JSON
    try:
        trees, findings = parse_documents(text, where)
    except UnreadableYaml as error:
        raise CommandFailed(str(error.finding), USAGE) from error
    if findings or len(trees) != 1:
        raise CommandFailed(str(findings[0]) if findings else f"{where}: expected one document", USAGE)
    return plain(trees[0])


def _say(applied: pb.AppliedObject, done: str, dry_run: str) -> None:
    result = "unchanged" if applied.result == "unchanged" else done
    click.echo(f"{called(applied.kind, applied.namespace, applied.name)} {result}{told_dry(dry_run)}")
