# SPDX-License-Identifier: Apache-2.0
"""The same with iptables: chains of ours in the tables raw and filter.

There are no elements with a life: the jump to the first chain is there while the address is live, and the socket match
guards what follows a crash of both programs. It knows sockets of every state, so each packet of a connection meets one.
"""

from collections.abc import Iterable

from kepd_dns.rules.guards import PORT, PROBE_MARK, Asking

ASKED, ANSWERED = "KEPD-DNS", "KEPD-DNS-OUT"
HERE, STRANGERS = "KEPD-DNS-ACCEPT", "KEPD-DNS-WHO"
JUMPS = (
    ("raw", "PREROUTING", ASKED),
    ("raw", "OUTPUT", ANSWERED),
    ("filter", "INPUT", HERE),
    ("filter", "OUTPUT", HERE),
)
"""Table, chain, and ours that it leads to."""
CHAINS = {"raw": (ASKED, ANSWERED, STRANGERS), "filter": (HERE,)}
TABLES = ("raw", "filter")


def restore_text(asking: Asking, live: Iterable[str]) -> str:
    """Input of iptables-restore --noflush: our chains anew. What is not live is left to what comes after."""
    live_now = tuple(live) if asking.falls_back else asking.addresses
    raw = [f":{one} - [0:0]" for one in CHAINS["raw"]]
    if asking.judges:
        raw += [
            f"-A {ASKED} -d {one} -p {way} --dport {PORT} -j {STRANGERS}" for one in asking.addresses for way in WAYS
        ]
        raw += _strangers(asking)
    for one in live_now:
        to = f"-A {ASKED} -d {one}"
        raw += [f"{to} -p {way} --dport {PORT} -m socket --nowildcard -j CT --notrack" for way in WAYS]
        raw += [f"-A {ANSWERED} -d {one} -p {way} --dport {PORT} -j CT --notrack" for way in WAYS]
    raw += [
        f"-A {ANSWERED} -s {one} -p {way} --sport {PORT} -j CT --notrack" for one in asking.addresses for way in WAYS
    ]
    marked = f"-m mark --mark {PROBE_MARK:#x} -j CT --notrack"
    raw += [f"-A {ANSWERED} -d {one} -p {way} --dport {PORT} {marked}" for one in asking.addresses for way in WAYS]
    accepted = [f":{HERE} - [0:0]"]
    for one in asking.addresses:
        accepted += [f"-A {HERE} -d {one} -p {way} --dport {PORT} -j ACCEPT" for way in WAYS]
        accepted += [f"-A {HERE} -s {one} -p {way} --sport {PORT} -j ACCEPT" for way in WAYS]
    return "\n".join(("*raw", *raw, "COMMIT", "*filter", *accepted, "COMMIT", ""))


def jumps_text(jumps: Iterable[tuple[str, str, str]]) -> str:
    """Input of iptables-restore --noflush: these jumps before all other rules of their chains."""
    lines = []
    for table in TABLES:
        found = [f"-I {chain} 1 -j {ours}" for one, chain, ours in jumps if one == table]
        lines += [f"*{table}", *found, "COMMIT"] if found else []
    return "\n".join((*lines, ""))


WAYS = ("udp", "tcp")


def _strangers(asking: Asking) -> list[str]:
    rules = [f"-A {STRANGERS} -m addrtype --src-type LOCAL -j RETURN"]
    rules += [f"-A {STRANGERS} -s {one} -j RETURN" for one in (*asking.pods, *asking.allowed)]
    if asking.detection.mode == "interface":
        rules.append(f"-A {STRANGERS} -i {asking.detection.interface.replace('*', '+')} -j RETURN")
    if asking.detection.mode == "none":
        return rules + [f"-A {STRANGERS} -i {one} -j DROP" for one in asking.outside]
    return [*rules, f"-A {STRANGERS} -j DROP"]


def dropped(listed: str) -> int:
    """Packets that rules of the chain for strangers dropped, as `-v -S` lists them: `-c PACKETS BYTES`."""
    lines = (line.split() for line in listed.splitlines() if line.endswith("-j DROP"))
    return sum(int(words[words.index("-c") + 1]) for words in lines if "-c" in words)
