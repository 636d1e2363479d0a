# SPDX-License-Identifier: Apache-2.0
"""`kepctl what-if`: what a change of a cluster would do to its Services, before it is made. It needs no daemon and
touches nothing: it reads files that `kubectl get -o json` wrote, lists what an API server has, or reads the manifests
of this node.

Exit codes: 0, 1 where something of --fail-on is so, 2 for wrong input, 4 where the API server is away or gives no
answer that can be used, 5 where it refuses, 7 where it takes too long, 78 where kepd's configuration is wrong.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Unpack

import click
import msgspec
from msgspec.structs import replace

from agent.cli.commands.planes.topology import documents_of, files_of
from agent.cli.render import output_option, print_blocks, print_data
from agent.cli.session import CommandFailed, Session
from agent.model.exit_codes import FAILURE, USAGE
from agent.model.finding import gathered
from agent.topology.manifest.objects import Document
from kepd_rehearsal.effects.told import NO_CONNECTIONS, Asked, Told, split_wanted, told_faults, told_of
from kepd_rehearsal.plan.advice import advise, parse_goal
from kepd_rehearsal.plan.applying import rehearse_files
from kepd_rehearsal.plan.changes import (
    BadChange,
    Change,
    parse_add_node,
    parse_hpa,
    parse_scale,
    parse_traffic,
)
from kepd_rehearsal.plan.cluster import Cluster
from kepd_rehearsal.plan.images import parse_image
from kepd_rehearsal.plan.reading import read_cluster
from kepd_rehearsal.plan.rehearse import Rehearsal, rehearse
from kepd_rehearsal.run.clusters.shedding import shed_dump
from kepd_rehearsal.run.clusters.sources import Source, chosen_source, read_source, source_options
from kepd_rehearsal.run.options import Known, asked_for, told_options
from kepd_rehearsal.run.progress import Progress
from kepd_rehearsal.view.picture import rehearsals_page, rehearsals_svg
from kepd_rehearsal.view.tables import told_blocks, told_section
from kepd_rehearsal.view.texts import advice_text, faults_of, rehearsal_text

Command = Callable[..., Any]
PARSERS: dict[str, Callable[[str], Change]] = {
    "scale": parse_scale, "hpa": parse_hpa, "add-node": parse_add_node, "traffic": parse_traffic,
    "drain": lambda text: Change("drain", text), "lose-node": lambda text: Change("lose-node", text),
    "lose-zone": lambda text: Change("lose-zone", text),
    "roll": lambda text: Change("roll", text if "/" in text else f"default/{text}"),
}  # fmt: skip
HELP = {
    "scale": "NAMESPACE/NAME=N: another number of pods.",
    "hpa": "NAMESPACE/NAME=MIN..MAX: each number of pods in turn.",
    "drain": "NODE: it takes no pods, and its own end.",
    "lose-node": "NODE: it is gone.",
    "lose-zone": "ZONE: all its nodes are gone.",
    "add-node": "LIKE=NODE,zone=ZONE: one more.",
    "roll": "NAMESPACE/NAME: all its pods are made anew.",
    "image": "[CONTAINER=]IMAGE: what pods of the --roll before it have.",
    "traffic": "NAMESPACE/NAME=POLICY: Cluster, Local, Auto, None or a distribution.",
}


class InOrder(click.Command):
    """Changes are carried out in the order in which they stand on the command line, whatever option they are."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta["changes"] = list(_written(args))
        return super().parse_args(ctx, args)


def _written(args: Sequence[str]) -> Iterator[tuple[str, str]]:
    for place, word in enumerate(args):
        name, is_joined, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or name not in HELP:
            continue
        if is_joined:
            yield name, value
        elif place + 1 < len(args):
            yield name, args[place + 1]


def _changes(written: Sequence[tuple[str, str]]) -> list[Change]:
    """Raises BadChange."""
    found: list[Change] = []
    for name, value in written:
        if name != "image":
            found.append(PARSERS[name](value))
        elif not found or found[-1].verb != "roll" or found[-1].value:
            raise BadChange(f"--image {value} has no roll; expected --roll NAMESPACE/NAME just before it")
        else:
            found[-1] = replace(found[-1], value=parse_image(value))
    return found


def _options(command: Command) -> Command:
    for name, text in reversed(HELP.items()):
        metavar, _, sentence = text.partition(": ")
        command = click.option(
            f"--{name}", multiple=True, metavar=metavar, help=f"{sentence[0].upper()}{sentence[1:]}", expose_value=False
        )(command)
    return command


@click.command(name="what-if", cls=InOrder)
@_options
@source_options
@click.option(
    "-f", "edited", multiple=True, type=click.Path(exists=True, path_type=Path),
    help="Manifests that take the place of those of the same names, after all other changes.",
)  # fmt: skip
@click.option("--want", "goals", multiple=True, metavar="GOAL", help="hints, no-dark or overload<20%: what brings it.")
@click.option(
    "--fail-on", default="", metavar="LIST", help="dark, pending, budget, grace, overload>30%, pull>5m: exit 1."
)
@told_options
@click.option("--all", "shows_all", is_flag=True, help="Show Services that would not notice as well.")
@output_option("table", "json", "yaml", "svg", "html")
@click.pass_context
def what_if(
    ctx: click.Context, edited: tuple[Path, ...], goals: tuple[str, ...], fail_on: str, *,
    shows_all: bool, output: str, **known: Unpack[Known],
) -> None:  # fmt: skip
    """Tell what changes of a cluster would do, before they are made: endpoints and hints of each Service, load, nodes
    where nothing answers, pods that would wait, budgets that would hold a drain, how pods end, what nodes pull.

    Changes are carried out in their order, of a copy of the cluster: nothing is touched.
    """
    session: Session = ctx.obj
    try:
        changes = _changes(ctx.meta["changes"])
        wanted, own_wanted = split_wanted(one.strip() for one in fail_on.split(",") if one.strip())
        faults_of((), wanted)
        asked = asked_for(**known)
        parsed = [(parse_goal(goal), goal) for goal in goals]
        chosen = chosen_source(ctx.meta)
        with Progress() as progress:
            cluster = _cluster(chosen, session, progress)
            found, after = _rehearsed(cluster, changes, asked, progress)
            if edited:
                progress(f"applying {edited[0]}")
                one, later = rehearse_files(after, _read(_edits(edited), progress), edited)
                found.append((one, told_of(one, "file", after, later, asked)))
                after = later
            advice = [one for goal, text in parsed for one in advise(after, goal, text, told=progress)]
        faults = faults_of([one for one, _ in found], wanted)
        faults += [text for one, told in found for text in told_faults(one.change, told, own_wanted)]
    except BadChange as error:
        raise CommandFailed(str(error), USAGE) from error
    if output == "svg":
        click.echo(rehearsals_svg([one for one, _ in found]), nl=False)
    elif output == "html":
        tables = [
            told_section(f"What if: {one.change}", rehearsal_text(one, shows_all=shows_all, more=told_blocks(told)))
            for one, told in found
        ]
        tables += [told_section("Advice", advice_text(advice))] if advice else []
        click.echo(rehearsals_page([one for one, _ in found], "".join(tables)), nl=False)
    elif output == "table":
        for one, told in found:
            print_blocks(rehearsal_text(one, shows_all=shows_all, more=told_blocks(told)), session)
        print_blocks(advice_text(advice), session)
    else:
        shown = [{**msgspec.to_builtins(one), **msgspec.to_builtins(told)} for one, told in found]
        print_data({"rehearsals": shown, "advice": msgspec.to_builtins(advice)}, output)
    if not found and not goals:
        raise CommandFailed("nothing was to be changed; expected one of --" + ", --".join(PARSERS) + " or -f", USAGE)
    if faults:
        raise CommandFailed("\n".join(faults), FAILURE)


def _cluster(source: Source, session: Session, progress: Progress) -> Cluster:
    given = read_source(source, session, progress, _documents)
    progress("reading the objects")
    cluster, assumed = given.complete(_read(given.documents, progress))
    for note in (*given.notes, *assumed):
        progress.say(note)
    return cluster


def _rehearsed(
    cluster: Cluster, changes: Sequence[Change], asked: Asked, progress: Progress
) -> tuple[list[tuple[Rehearsal, Told]], Cluster]:
    found: list[tuple[Rehearsal, Told]] = []
    for number, change in enumerate(changes, 1):
        progress(f"change {number} of {len(changes)}: {change.text}")
        counts = range(change.least, change.most + 1) if change.verb == "hpa" else ()
        after = cluster
        for step in [Change("scale", change.what, count, count) for count in counts] or [change]:
            (one,), after = rehearse(cluster, [step])
            if asked.connections is None:
                one = replace(one, not_looked_at=(*one.not_looked_at, NO_CONNECTIONS))
            found.append((one, told_of(one, step.verb, cluster, after, asked)))
        # Each number of pods is a change of its own, of the cluster as it is.
        cluster = cluster if counts else after
    return found, cluster


def _documents(sources: Sequence[Path]) -> list[Document]:
    """A whole cluster in JSON is far more than a manifest may be, and has no aliases that could grow."""
    found = []
    for path in (path for source in sources for path in files_of(source)):
        if path.suffix != ".json":
            found += list(documents_of([path]))
            continue
        try:
            found.append(Document(str(path), shed_dump(path.read_bytes())))
        except OSError as error:
            raise CommandFailed(f"{path}: cannot be read: {error.strerror}", USAGE) from error
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise CommandFailed(f"{path}: is no JSON object: {error}; expected kubectl get -o json", USAGE) from error
    return found


def _edits(edited: Sequence[Path]) -> list[Document]:
    """A pipeline that names the wrong folder should hear of it."""
    found = [one for one in _documents(edited) if one.content]
    if not found:
        raise CommandFailed(f"{', '.join(map(str, edited))} has no object; expected manifests", USAGE)
    return found


def _read(documents: Sequence[Document], progress: Progress) -> Cluster:
    reading = read_cluster(documents)
    for finding in (*reading.errors, *gathered(reading.notes)):
        progress.say(str(finding))
    if reading.errors:
        raise CommandFailed("what is wrong there cannot be rehearsed", USAGE)
    return reading.cluster
