# SPDX-License-Identifier: Apache-2.0
"""Ends and pulls in words and tables, for a terminal and for a page. Names may be hostile, and a page escapes them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape

from agent.kinds.amounts import rate, size, span
from agent.kinds.table import Grid, Paragraph
from agent.model.finding import printable
from kepd_rehearsal.effects.ends import ContainerEnd, PodsEnd
from kepd_rehearsal.effects.pulls import MOST_LISTED, NodePulls, Pulls
from kepd_rehearsal.effects.told import Told

Block = Paragraph | Grid
END_TITLES = ["PODS", "OF", "GRACE", "PRESTOP", "TERM AFTER", "KILLED BY", "REMARK"]
PULL_TITLES = ["NODE", "PODS", "IMAGES", "BYTES", "LAST POD AFTER", "REMARK"]
MOST_ROWS, MOST_NAMES = 20, 2
STYLE = """<style>section{font:13px system-ui,"DejaVu Sans",sans-serif;margin:8px;color:CanvasText}
table{border-collapse:collapse}th,td{text-align:left;vertical-align:top;padding:2px 12px 2px 0}
th{font-size:11px}td{border-top:1px solid #8888;overflow-wrap:anywhere}</style>"""


def told_blocks(told: Told) -> Iterator[Block]:
    if told.ended_at_once:
        yield Paragraph(f"pods that end with their nodes, {told.ended_at_once}: no hook, signal or grace comes before")
    if told.ends:
        yield Paragraph("how they end by their specs, which do not say when a program exits:")
        yield Grid(END_TITLES, [_end_row(one) for one in told.ends[:MOST_ROWS]])
        yield from _rest(len(told.ends), "kinds of pods")
    if told.connections is not None:
        yield Paragraph(_connections(told.connections, told.connections_left_out))
    yield from _pulls(told.pulls)


def _rest(count: int, what: str) -> Iterator[Block]:
    if count > MOST_ROWS:
        yield Paragraph(f"and {count - MOST_ROWS} more {what}; -o json has all of them")


def _end_row(one: PodsEnd) -> list[str]:
    hooks = [f"{_named(each, one)}{_hook(each)}" for each in one.containers if each.hook]
    spans = [f"{_named(each, one)}{_between(each.signal_first_s, each.signal_last_s)}" for each in one.containers]
    remark = "; ".join((*one.faults, *one.remarks))
    shown = [", ".join(hooks) or "-", ", ".join(spans) or "-", f"{one.killed_s:.0f} s", remark or "-"]
    return [str(len(one.pods)), one.what, f"{one.grace_s} s", *shown]


def _named(container: ContainerEnd, of: PodsEnd) -> str:
    return f"{container.name} " if len(of.containers) > 1 else ""


def _hook(one: ContainerEnd) -> str:
    return f"sleep {one.sleep_s} s" if one.sleep_s is not None else one.hook


def _between(first_s: float, last_s: float) -> str:
    return f"{first_s:.0f} s" if first_s == last_s else f"{first_s:.0f} to {last_s:.0f} s"


def _connections(known: Mapping[str, int], left_out: int) -> str:
    most = sorted(known.items(), key=lambda one: (-one[1], one[0]))
    named = ", ".join(f"{count} to {pod}" for pod, count in most[:5])
    more = f" and those of {len(most) - 5} more pods" if len(most) > 5 else ""
    cut = f"; {left_out} more were not listed in the files" if left_out else ""
    text = "they end when their program closes them at the signal, and by the kill at the latest"
    return f"open connections to pods that end, {sum(known.values())}: {named or 'none'}{more}; {text}{cut}"


def _pulls(pulls: Pulls) -> Iterator[Block]:
    if not pulls.nodes:
        return
    at_once = "one at a time" if pulls.parallel == 1 else f"{pulls.parallel} at a time"
    yield Paragraph(f"pulls, {at_once} at {rate(pulls.bandwidth)} for each node, sizes as nodes tell them:")
    yield Grid(PULL_TITLES, [_pull_row(one) for one in pulls.nodes[:MOST_ROWS]])
    yield from _rest(len(pulls.nodes), "nodes")
    if pulls.seconds:
        saved = f"a prefetch before the change saves {_time(pulls.seconds)} there"
        yield Paragraph(f"the slowest is {pulls.nodes[0].node}; {saved}")
    if pulls.unknown:
        yield Paragraph(f"no node says the size of {_some(pulls.unknown)}; it counts as 0 unless --image-size says it")


def _time(seconds: float) -> str:
    return span(seconds) if seconds >= 1 or not seconds else "less than 1s"


def _pull_row(one: NodePulls) -> list[str]:
    remarks = []
    if one.never:
        remarks.append(f"policy Never, and not there: {_some(one.never)}")
    if one.is_cut:
        remarks.append(f"lists {MOST_LISTED} images, as many as a kubelet tells: some may be there")
    if one.checks:
        remarks.append(f"{one.checks} there, asked for again")
    at_least = "at least " if one.unknown else ""
    names = _some([each.image for each in one.images])
    shown = [names or "-", f"{at_least}{size(one.size_bytes)}", f"{at_least}{_time(one.seconds)}"]
    return [one.node, str(one.pods), *shown, "; ".join(remarks) or "-"]


def _some(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def told_section(title: str, blocks: Iterable[Block]) -> str:
    """For a page; the style stands in each, so that one alone is whole."""
    parts = [f"<p>{_escaped(one.text)}</p>" if isinstance(one, Paragraph) else _table(one) for one in blocks]
    return f"<section>{STYLE}<h3>{_escaped(title)}</h3>{''.join(parts)}</section>" if parts else ""


def _table(one: Grid) -> str:
    head = "".join(f"<th>{_escaped(title)}</th>" for title in one.titles)
    rows = "".join(f"<tr>{''.join(f'<td>{_escaped(cell)}</td>' for cell in row)}</tr>" for row in one.rows)
    return f"<table><tr>{head}</tr>{rows}</table>"


def _escaped(text: str) -> str:
    return escape(printable(text))
