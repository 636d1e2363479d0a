# SPDX-License-Identifier: Apache-2.0
"""Follows one new connection through iptables rules, rule by rule.

Rules of other programs are skipped. The rules are those that should be there, or those that a reading of the kernel
brought. It rolls no dice: it follows every endpoint that may be chosen.
"""

import shlex
from collections.abc import Sequence
from functools import lru_cache
from ipaddress import ip_address

import msgspec

from agent.model.services.iptables_rules import Content, Table, is_ours
from agent.model.services.report import TraceStep
from agent.model.services.service import Address
from agent.services.iptables.frame import JUMPS
from agent.services.nftables.trace import Outcome, Packet, Verdict
from agent.services.objects.addresses import read_range

MOST_PARSED = 4096
_VERDICTS: dict[str, Verdict] = {"DROP": "drop", "REJECT": "reject", "ACCEPT": "pass"}


class _Rule(msgspec.Struct, frozen=True, gc=False):
    """One rule taken apart: (is negated, option, value), and where it leads."""

    matches: tuple[tuple[bool, str, str], ...]
    target: str
    value: str
    text: str

    def has(self, option: str) -> bool:
        return any(one == option for _, one, _ in self.matches)


def trace_rules(content: Content, packet: Packet) -> Outcome:
    return _ChainWalk(content, packet).outcome()


@lru_cache(MOST_PARSED)
def _parse(text: str) -> _Rule:
    words = shlex.split(text)
    matches: list[tuple[bool, str, str]] = []
    target = value = ""
    is_negated, at = False, 0
    while at < len(words):
        word = words[at]
        following = words[at + 1] if at + 1 < len(words) else ""
        if word == "!":
            is_negated = True
            at += 1
            continue
        takes = word not in ("--rcheck", "--reap", "--rsource", "--set", "--random-fully")
        if word == "-j":
            target = following
        elif target:
            value = following
        elif word not in ("-m", "--comment", "--mode"):
            matches.append((is_negated, word, following if takes else ""))
        is_negated = False
        at += 2 if takes else 1
    return _Rule(tuple(matches), target, value, text)


class _ChainWalk:
    def __init__(self, content: Content, packet: Packet) -> None:
        self._content = content
        self._packet = packet
        self._steps: list[TraceStep] = []
        self._is_marked = False
        self._is_marked_before_endpoint = False
        self._arrived: list[tuple[bytes, int]] = []
        self._has_hairpin = False
        self._affinity_s = 0

    def outcome(self) -> Outcome:
        self._nat("OUTPUT" if self._packet.is_from_host else "PREROUTING")
        if self._arrived:
            return Outcome(
                "dnat",
                tuple(self._steps),
                tuple(self._arrived),
                is_masqueraded=True if self._is_marked_before_endpoint else None if self._has_hairpin else False,
                affinity_s=self._affinity_s,
            )
        verdict = self._filter()
        if verdict == "pass":
            self._note("the rest of the rules", "no rule of kepd decides")
        return Outcome(verdict, tuple(self._steps), is_masqueraded=self._is_marked and verdict == "pass")

    def _note(self, place: str, found: str) -> None:
        self._steps.append(TraceStep(place, found))

    def _chain(self, table: Table, name: str) -> Sequence[str]:
        """A chain of the kernel's own without the rules of others; with our jumps also if nobody read them."""
        chain = self._content.get(table, {}).get(name)
        if chain is None:
            return [rule for at, rule in JUMPS[table] if at == name]
        if is_ours(name):
            return chain
        return [rule for rule in chain if is_ours(rule.rpartition("-j ")[2].split(" ")[0])]

    def _nat(self, name: str) -> bool:
        for text in self._chain("nat", name):
            rule = _parse(text)
            if not self._fits(rule):
                continue
            if rule.target == "DNAT":
                self._arrive(name, rule)
                return True
            if rule.has("--probability"):
                self._branch(rule.target)
            elif self._follow(name, rule):
                return True
        return False

    def _follow(self, name: str, rule: _Rule) -> bool:
        if rule.target == "RETURN":
            return False
        if rule.target == "KUBE-MARK-MASQ":
            self._note(f"nat {name}", "masqueraded")
            self._is_marked = True
            return False
        if not rule.target:
            return False
        self._note(f"nat {name}", f"continues in {rule.target}")
        return self._enter(rule.target)

    def _branch(self, target: str) -> None:
        """One of those that chance may choose; the packet of the next one has not been there."""
        self._note("nat", f"may continue in {target}")
        before = self._is_marked
        self._enter(target)
        self._is_marked = before

    def _enter(self, target: str) -> bool:
        if target.startswith("KUBE-SEP-"):
            self._is_marked_before_endpoint = self._is_marked
        return self._nat(target)

    def _arrive(self, name: str, rule: _Rule) -> None:
        address, _, port = rule.value.rpartition(":")
        self._arrived.append((ip_address(address.strip("[]")).packed, int(port)))
        self._has_hairpin |= self._is_marked and not self._is_marked_before_endpoint
        self._note(f"nat {name}", f"sent to {rule.value}")

    def _filter(self) -> Verdict:
        hooks = (["OUTPUT"] if self._packet.is_from_host else []) + (["INPUT"] if self._packet.is_to_host else [])
        for hook in hooks or ["FORWARD"]:
            verdict = self._filter_chain(hook)
            if verdict:
                return verdict
        return "pass"

    def _filter_chain(self, name: str) -> Verdict | None:
        for text in self._chain("filter", name):
            rule = _parse(text)
            if not self._fits(rule):
                continue
            verdict = _VERDICTS.get(rule.target)
            if verdict is not None:
                self._note(f"filter {name}", rule.target.lower())
                return verdict
            found = self._filter_chain(rule.target) if rule.target else None
            if found is not None:
                return found
        return None

    def _fits(self, rule: _Rule) -> bool:
        if rule.has("--rcheck"):
            # Nobody knows which clients the kernel remembers; a new one is followed.
            self._affinity_s = int(next(value for _, option, value in rule.matches if option == "--seconds"))
            return False
        return all(self._meets(option, value) != is_negated for is_negated, option, value in rule.matches)

    def _meets(self, option: str, value: str) -> bool:
        packet = self._packet
        match option:
            case "-s":
                return _is_within(packet.source, value)
            case "-d":
                return _is_within(packet.target, value)
            case "-i":
                return packet.is_from_pod_interface
            case "-p":
                return packet.protocol.lower() == value
            case "--dport":
                return packet.port == int(value)
            case "--dst-type":
                return packet.is_to_host
            case "--src-type":
                return packet.is_from_host
            case "--ctstate":
                return "NEW" in value.split(",")
            case "--mark":
                return self._is_marked
            case _:
                return True


@lru_cache(MOST_PARSED)
def _is_within(address: Address, network: str) -> bool:
    found = read_range(network)
    return found is not None and found.family == address.family and found.first <= address.packed <= found.last
