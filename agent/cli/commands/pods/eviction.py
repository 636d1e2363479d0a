# SPDX-License-Identifier: Apache-2.0
"""`kepctl explain eviction`: what the node has left before pods end for it, and which would go first."""

from collections.abc import Iterator

import click

from agent.cli.client import ask
from agent.cli.render import output_option, print_message
from agent.cli.session import Session
from agent.kinds.described import grid
from agent.model.finding import printable
from agent.wire.kepd.v1 import node_pb2

METHOD = "kepd.v1.NodeService/ExplainEviction"


@click.command("eviction")
@output_option("table", "json", "yaml")
@click.pass_obj
def explain_eviction(session: Session, output: str) -> None:
    """Show what the node has left before pods are evicted, and who would go first."""
    answer = ask(session, METHOD, node_pb2.ExplainEvictionRequest(), node_pb2.ExplainEvictionResponse)
    if output != "table":
        print_message(answer, output)
        return
    for line in eviction_lines(answer):
        click.echo(printable(line))


def eviction_lines(answer: node_pb2.ExplainEvictionResponse) -> Iterator[str]:
    if not answer.on:
        yield answer.message
        return
    yield f"CONDITIONS {', '.join(answer.conditions) or 'none'}"
    rows = [_signal(one) for one in answer.signals]
    yield from grid(("Signal", "Kind", "Left", "Threshold", "Distance", "State"), rows)
    for signal in dict.fromkeys(one.signal for one in answer.candidates):
        yield f"For {signal}:"
        listed = [one for one in answer.candidates if one.signal == signal]
        rows = [
            (str(one.rank or "-"), f"{one.namespace}/{one.name}", *_use(one), str(one.priority), one.why)
            for one in listed
        ]
        yield from grid(("Turn", "Pod", "Uses", "Asked for", "Priority", "Why not"), rows)


def _signal(one: node_pb2.EvictionSignal) -> tuple[str, ...]:
    if not one.capacity:
        return one.signal, one.kind, "-", amount(one.signal, one.line), "-", one.message
    left = f"{amount(one.signal, one.available)} of {amount(one.signal, one.capacity)}"
    state = "ok"
    if one.HasField("met_since"):
        state = f"met, acted on after {one.grace.seconds} s" if one.grace.seconds else "met"
    distance = one.available - one.line
    shown = f"-{amount(one.signal, -distance)}" if distance < 0 else amount(one.signal, distance)
    return one.signal, one.kind, left, amount(one.signal, one.line), shown, state


def _use(one: node_pb2.EvictionCandidate) -> tuple[str, str]:
    return amount(one.signal, one.used), amount(one.signal, one.requested)


def amount(signal: str, value: int) -> str:
    """Bytes in the unit that suits them; inodes and processes are counted."""
    if signal.endswith("inodesFree") or signal.startswith("pid."):
        return str(value)
    for unit, power in (("Gi", 30), ("Mi", 20), ("Ki", 10)):
        if value >= 1 << power:
            return f"{value / (1 << power):.1f}{unit}"
    return str(value)
