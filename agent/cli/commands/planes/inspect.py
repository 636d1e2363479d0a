# SPDX-License-Identifier: Apache-2.0
"""`kepctl inspect`: one object in full."""

import click

from agent.cli.client import ask
from agent.cli.objects.kind_group import KindGroup
from agent.cli.render import output_option, print_blocks, print_message
from agent.cli.session import Session
from agent.kinds.ages import age
from agent.kinds.amounts import size
from agent.kinds.table import Grid, Paragraph
from agent.wire.kepd.v1 import image_pb2


@click.group(cls=KindGroup)
def inspect() -> None:
    """Show one image in full."""


@inspect.command()
@click.argument("name", metavar="REF")
@output_option("table", "json", "yaml")
@click.pass_obj
def image(session: Session, name: str, output: str) -> None:
    """Show what an image of the node is made of, who uses it, and who may. REF is a name or an id."""
    request = image_pb2.InspectImageRequest(image=name)
    answer = ask(session, "kepd.v1.ImageService/InspectImage", request, image_pb2.InspectImageResponse)
    if output != "table":
        print_message(answer, output)
        return
    print_blocks([*_head(answer), *_tables(answer)], session)


def _head(answer: image_pb2.InspectImageResponse) -> list[Paragraph]:
    found = answer.image
    lines = [
        ("image", answer.reference or found.id),
        ("id", found.id),
        ("names", ", ".join(found.names)),
        ("leads to", f"{answer.digest} {answer.media_type}".strip()),
        ("manifest", answer.manifest_digest),
        ("size", f"{size(found.size_bytes)}; {size(answer.total_bytes)} to fetch on a node without any of it"),
        ("source", f"{found.source}, seen {age(found.first_seen) or 'just now'}"),
        ("used by", ", ".join(found.used_by) or "no container"),
        ("kept", found.kept_because or "may be removed"),
        *(("may use", one) for one in answer.may_use),
        *(("unknown", one) for one in answer.notes),
    ]
    return [Paragraph(f"{label:9} {text}") for label, text in lines if text]


def _tables(answer: image_pb2.InspectImageResponse) -> list[Grid]:
    platforms = [(one.platform, one.digest, "yes" if one.is_present else "no") for one in answer.platforms]
    layers = [(one.digest, size(one.size_bytes), "yes" if one.is_present else "no") for one in answer.layers]
    found = [Grid(("PLATFORM", "MANIFEST", "PRESENT"), platforms)] if platforms else []
    return [*found, Grid(("LAYER", "SIZE", "BLOB KEPT"), layers)] if layers else found
