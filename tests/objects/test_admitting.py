# SPDX-License-Identifier: Apache-2.0
"""Nothing in force goes unless a file without fault no longer names it, and a restart changes nothing: all kinds, over
random histories."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from agent.config.strict_yaml import Tree
from agent.kinds.registry import MANIFEST_KINDS
from agent.model.finding import Finding
from agent.model.manifests.snapshot import Key
from agent.objects.admitting import NOTHING, InForce, admit
from agent.objects.reading import Objects, Reading, Readings
from agent.objects.run.memory import ObjectMemory
from tests.objects.histories import NAMES, READINGS, History

Said = dict[Key, tuple[str, bytes]]


def said(in_force: InForce) -> Said:
    """What is in force, whose it is, and what it says."""
    return {key: (object_.path, object_.document) for key, object_ in in_force.objects.items()}


def after(files: Mapping[str, bytes], before: InForce = NOTHING, readings: Readings = READINGS) -> InForce:
    return admit(files, {}, before, readings, (*MANIFEST_KINDS, "Teapot"))


@pytest.mark.parametrize("seed", range(60))
def test_a_restart_changes_nothing(tmp_path: Path, seed: int) -> None:
    """MAN-14, MAN-03, MAN-07. The process is killed between any two writes of what it remembers."""
    history, file = History(seed), tmp_path / "objects.db"
    memory = ObjectMemory(file)
    memory.load()
    now, last, remembered = NOTHING, dict[str, bytes](), said(NOTHING)
    for _ in range(20):
        history.step()
        before, last = said(now), history.look(last)
        now = after(last, now)
        assert said(after(last, now)) == said(now), "the same look again changes nothing"
        for key, (path, _) in before.items():
            if key not in now.objects or now.objects[key].path != path:
                assert path not in last or _names_none(path, last[path], key), f"{key} went without an order"
        if history.chance.random() < 0.7:
            memory.keep(*now.to_remember())
            remembered = said(now)
        memory.close()
        begun = after(ObjectMemory(file).load().snapshot.files)
        assert said(begun) == remembered, "what is remembered is what was in force"
        if remembered == said(now):
            assert said(after(history.look(begun_files(begun)), begun)) == said(now), (
                "and what is there changes nothing"
            )


def begun_files(begun: InForce) -> dict[str, bytes]:
    return {path: file.content for path, file in begun.files.items() if isinstance(file.content, bytes)}


def _names_none(path: str, content: bytes, key: Key) -> bool:
    read = after({path: content})
    return not read.complaints and key not in read.objects


class Teapot(msgspec.Struct):
    size: int
    mark: str


MOST = 12


def read_teapot(tree: Tree, _kind: str, _path: str, findings: list[Finding]) -> Teapot | None:
    spec = {name: entry.scalar for name, entry in tree.entries["spec"].entries.items()}
    if spec["isCracked"]:
        findings.append(Finding(tree.where, "spec.isCracked", "must be whole"))
        return None
    return Teapot(int(str(spec["size"])), str(spec["mark"]))


def most_teapots(chosen: Objects, before: Objects) -> Sequence[tuple[Key, Finding]]:
    """What was in force stays at least as it was."""
    room = MOST - sum(min(before[key].value.size, each.value.size) for key, each in chosen.items() if key in before)
    refused = []
    for key, each in chosen.items():
        more = each.value.size - min(before[key].value.size if key in before else 0, each.value.size)
        if more <= room:
            room -= more
        else:
            refused.append((key, Finding(each.where, "spec.size", "too much")))
    return refused


TEAPOTS = Readings([
    Reading("tea", frozenset({"Teapot"}), read_teapot, marks=lambda pot: [("spec.mark", pot.mark)], bound=most_teapots)
])  # fmt: skip


class Teapots(History):
    """Objects as numbers, which the oracle reads without YAML: name, size, mark, and whether it is cracked."""

    def text(self) -> bytes:
        chance = self.chance
        pots = [
            (name, chance.randrange(1, 6), f"m{chance.randrange(4)}", chance.random() < 0.15)
            for name in NAMES
            if chance.random() < 0.6
        ]
        documents = (
            {
                "apiVersion": "v1",
                "kind": "Teapot",
                "metadata": {"name": name},
                "spec": {"size": size, "mark": mark, "isCracked": is_cracked},
            }
            for name, size, mark, is_cracked in pots
        )
        text = "\n---\n".join(map(json.dumps, documents))
        return ("{" + text if chance.random() < 0.1 else text).encode()


Pot = tuple[str, int, str]
"""Path, size, mark."""


# Before the name of what a file had, where that loses and not what the file says now.
KEPT = "="


class Oracle:
    """The five rules, told a second time and as plainly as they can be."""

    def __init__(self) -> None:
        self.pots: dict[str, Pot] = {}

    def look(self, files: Mapping[str, bytes]) -> None:
        before = self.pots
        texts = {path: self._read(content) for path, content in sorted(files.items())}
        doubted = {path for path, (_, has_faults) in texts.items() if has_faults}
        doubted |= {path for path in files if not files[path].strip() and path in {pot[0] for pot in before.values()}}
        refused: set[tuple[str, str]] = set()
        moved: dict[str, Pot] = {}
        while True:
            chosen, newly = self._claimed(texts, doubted, refused, moved)
            for name in self._too_much(chosen) if not newly else ():
                newly.add((chosen[name][0], name))
                if name in before and before[name][0] != chosen[name][0]:
                    moved[name] = (chosen[name][0], *before[name][1:])
            if not newly:
                break
            refused |= newly
            doubted |= {path for path, _ in newly}
        self.pots = chosen

    def _claimed(
        self,
        texts: Mapping[str, tuple[list[tuple[str, int, str]], bool]],
        doubted: set[str],
        refused: set[tuple[str, str]],
        moved: Mapping[str, Pot],
    ) -> tuple[dict[str, Pot], set[tuple[str, str]]]:
        """First what stays as it is, then edits of what is in force, then what is new."""
        chosen, newly = dict(moved), set[tuple[str, str]]()
        for turn in ("same", "edited", "new"):
            for path, (named, _) in texts.items():
                mine = {name: (path, size, mark) for name, size, mark in named if (path, name) not in refused}
                kept = {
                    name: pot
                    for name, pot in self.pots.items()
                    if pot[0] == path and name not in {*mine, *moved} and (path, KEPT + name) not in refused
                }
                for name, pot in {**mine, **(kept if path in doubted else {})}.items():
                    was = self.pots.get(name)
                    is_ours = was is not None and was[0] == path
                    if turn != (("same" if was[2] == pot[2] else "edited") if was is not None and is_ours else "new"):
                        continue
                    if name in chosen or pot[2] in {other[2] for other in chosen.values()}:
                        newly.add((path, name if name in mine else KEPT + name))
                    else:
                        chosen[name] = pot
        return chosen, newly

    def _too_much(self, chosen: Mapping[str, Pot]) -> list[str]:
        before = self.pots
        room = MOST - sum(min(before[name][1], pot[1]) for name, pot in chosen.items() if name in before)
        refused = []
        for name, pot in chosen.items():
            more = pot[1] - min(before[name][1] if name in before else 0, pot[1])
            if more <= room:
                room -= more
            else:
                refused.append(name)
        return refused

    def _read(self, content: bytes) -> tuple[list[tuple[str, int, str]], bool]:
        text = content.decode()
        if not text or text.startswith("{{") or (text == "{"):
            return [], bool(text)
        documents = [json.loads(part) for part in text.split("\n---\n")]
        named = [
            (each["metadata"]["name"], each["spec"]["size"], each["spec"]["mark"])
            for each in documents
            if not each["spec"]["isCracked"]
        ]
        return named, len(named) < len(documents)


HISTORIES = 2000
# Of 100 000 that were run once: what had moved to another file was looked for in its former one as well, for ever.
ENDLESS = (2465, 3525, 3707, 4511, 6099, 11179)


@pytest.mark.parametrize("part", range(4))
def test_what_is_in_force_is_what_an_oracle_says(part: int) -> None:
    for seed in (*range(part, HISTORIES, 4), *ENDLESS[part::4]):
        history, oracle = Teapots(seed), Oracle()
        now, last = NOTHING, dict[str, bytes]()
        for _ in range(12):
            history.step()
            last = history.look(last)
            now = after(last, now, TEAPOTS)
            oracle.look(last)
            pots = {key[2]: (each.path, each.value.size, each.value.mark) for key, each in now.objects.items()}
            assert pots == oracle.pots, f"history {seed}"


@pytest.mark.parametrize(
    ("text", "is_fault", "words"),
    [
        (
            "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute",
            False,
            "HTTPRoute is not carried out here; a Dep",
        ),
        ("apiVersion: cert-manager.io/v1\nkind: Issuer", False, "Issuer is not carried out here"),
        ("apiVersion: v1\nkind: Podd", True, "Podd is not known here; did you mean Pod?"),
        ("apiVersion: apps/v1\nkind: Deploiment", True, "did you mean Deployment?"),
    ],
)
def test_a_foreign_kind_holds_up_nothing_and_a_slip_of_the_pen_ends_nothing(
    text: str, is_fault: bool, words: str
) -> None:
    pod = b"apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: a, image: i}]}\n"
    before = after({"/m/a.yaml": pod})
    beside = after({"/m/a.yaml": pod + f"---\n{text}\nmetadata: {{name: x}}\n".encode()}, before)
    instead = after({"/m/a.yaml": f"{text}\nmetadata: {{name: x}}\n".encode()}, before)
    (file,) = beside.files.values()
    findings = [complaint.finding for complaint in file.complaints]

    assert words in str([*findings, *file.foreign]).translate({34: None, 39: None, 92: None})
    assert (bool(findings), list(beside.objects)) == (is_fault, [("Pod", "default", "web")])
    assert (list(instead.objects) == [("Pod", "default", "web")]) is is_fault


def test_an_object_that_kepd_fails_at_holds_up_no_other() -> None:
    """Its last good version stays, and no value of it is told."""

    def read(tree: Tree, kind: str, path: str, findings: list[Finding]) -> Teapot | None:
        if tree.entries["metadata"].entries["name"].scalar == "y":
            raise ValueError("hidden")
        return read_teapot(tree, kind, path, findings)

    def pots(size: int) -> dict[str, bytes]:
        kind = {"apiVersion": "v1", "kind": "Teapot"}
        spec = {"size": size, "mark": "", "isCracked": False}
        documents = ({**kind, "metadata": {"name": name}, "spec": {**spec, "mark": name}} for name in NAMES)
        return {"/m/a": "\n---\n".join(map(json.dumps, documents)).encode()}

    before = after(pots(1), NOTHING, TEAPOTS)
    now = after(pots(2), before, Readings([msgspec.structs.replace(TEAPOTS.all[0], read=read)]))
    uncounted = Readings([msgspec.structs.replace(TEAPOTS.all[0], bound=lambda *_: 1 / 0)])  # type: ignore[arg-type]
    kept = after(pots(2), before, uncounted)

    assert {key[2]: each.value.size for key, each in now.objects.items()} == {"x": 2, "y": 1, "z": 2}
    assert "ValueError" in str(now.findings_of("tea"))
    assert "hidden" not in str(now.findings_of("tea"))
    assert {key[2]: each.value.size for key, each in kept.objects.items()} == {"x": 1, "y": 1, "z": 1}

    elsewhere = after({"/m/b": pots(2)["/m/a"]}, before, uncounted)
    sizes = {key[2]: (each.path, each.value.size) for key, each in elsewhere.objects.items()}
    assert sizes == dict.fromkeys(NAMES, ("/m/b", 1))
