# SPDX-License-Identifier: Apache-2.0
"""The input of iptables-restore and the output of iptables-save."""

from collections.abc import Iterable, Iterator

from agent.model.services.iptables_rules import TABLES, Chains, Content, RulesChange, Table, as_saved


def restore_text(change: RulesChange) -> str:
    """One input for all tables that change. A chain is emptied by naming it, and can be removed once it is empty."""
    return "".join(restore_pieces(change))


def restore_pieces(change: RulesChange, ahead: Iterable[Chains] = ()) -> Iterator[str]:
    """The same piece by piece, with chains of nat that exist only when their turn comes."""
    for table in TABLES:
        names, lines = _names(change, table), _rules(change, table)
        if names or lines or (ahead and table == "nat"):
            yield "\n".join((f"*{table}", *names, ""))
            if table == "nat":
                for chains in ahead:
                    rules = [f"-A {name} {rule}\n" for name, some in chains.items() for rule in some]
                    yield "".join((*(f":{name} - [0:0]\n" for name in chains), *rules))
            yield "\n".join((*lines, "COMMIT", ""))


def _names(change: RulesChange, table: Table) -> list[str]:
    names = (*change.kept.get(table, ()), *change.chains.get(table, {}), *change.gone.get(table, ()))
    return [f":{name} - [0:0]" for name in names]


def _rules(change: RulesChange, table: Table) -> list[str]:
    chains, gone = change.chains.get(table, {}), change.gone.get(table, ())
    lines = [f"-D {chain} {rule}" for chain, rule in change.deletes.get(table, ())]
    lines += [f"-A {name} {rule}" for name, rules in chains.items() for rule in rules]
    lines += [f"-A {name} {rule}" for name, rule in change.last.get(table, ())]
    # Each goes before all that is there, so the one that is to be first comes last.
    lines += [f"-I {name} {rule}" for name, rule in reversed(change.first.get(table, ()))]
    return lines + [f"-X {name}" for name in gone]


def parse_save(text: str) -> Content:
    """Table → chain → rules. Tables that we have nothing to do with are left out."""
    content: Content = {}
    rules: dict[str, list[str]] = {}
    table: Table | None = None
    for line in text.splitlines():
        match line[:1]:
            case "*":
                found = [one for one in TABLES if one == line[1:].strip()]
                table, rules = (found[0] if found else None), {}
            case ":":
                rules[line[1:].split(" ", 1)[0]] = []
            case "-" if line.startswith("-A "):
                _, chain, *rest = line.split(" ", 2)
                rules.setdefault(chain, []).append(as_saved(rest[0]) if rest else "")
            case "C" if table is not None:
                content[table] = {name: tuple(lines) for name, lines in rules.items()}
    return content
