# SPDX-License-Identifier: Apache-2.0
"""The constant part of our nftables table, as text for `nft -f -`.

Also the marker by which a later process recognises the table. Elements are no part of it, except the `drop` verdicts
that bridge a replacement.
Source of behaviour: affinity is ours (see `ChoiceChain`).
"""

import hashlib
import ipaddress
import re
from collections.abc import Iterator, Mapping

import msgspec
from msgspec.structs import replace

from agent.model.services.nft_table import (
    CLIENTS,
    LAYOUT,
    MAPS,
    PATTERN,
    TABLE,
    ChainBody,
    ChoiceChain,
    Content,
    MapKind,
    TableSettings,
    TableState,
)
from agent.services.nftables.elements import MOST_STATIC, PREFIXES

# A client costs about 150 bytes. When the map is full, affinity ends for new clients, nothing else. Before that
# ports with many clients lose some of theirs (crowding.py).
MOST_CLIENTS = 262_144

_INTERFACE = re.compile(r"[A-Za-z0-9_.:@+-]{1,15}\*?")


class _Chain(msgspec.Struct, frozen=True):
    name: str
    rules: tuple[str, ...]
    hook: str = ""
    comment: str = ""


def structure_text(settings: TableSettings) -> str:
    """The whole table without elements. Loads only where there is no table of ours."""
    marker = _Chain(LAYOUT, (), comment=layout_text(settings))
    lines = [f"table {_ip(settings)} {TABLE} {{", "  counter race_drops { }"]
    lines += _declarations(settings)
    for chain in (*_chains(settings), marker):
        lines += _chain_lines(chain)
    return "\n".join((*lines, "}", ""))


def replacement_text(settings: TableSettings, content: Content | None = None) -> str:
    """A new table in place of whatever has its name, as one transaction. Every frontend of `content` answers with
    `drop` at first, so that until its elements follow by netlink no packet leaves with an address of ours untranslated:
    a dropped first packet is repeated, an untranslated one binds its whole connection."""
    name = f"{_ip(settings)} {TABLE}"
    lines = [removal_text(settings), structure_text(settings)]
    for map_name in ("services", "nodeports"):
        keys = (content or {}).get(map_name, {})
        elements = ",\n".join(f"  {_key_text(MAPS[map_name].key, key)} : drop" for key in keys)
        if elements:
            lines.append(f"add element {name} {map_name} {{\n{elements}\n}}\n")
    return "".join(lines)


def removal_text(settings: TableSettings, table: str = TABLE) -> str:
    """Takes the table away, whether it is there or not."""
    name = f"{_ip(settings)} {table}"
    return f"add table {name}\ndelete table {name}\n"


def pattern_text(settings: TableSettings) -> str:
    """The same chains and maps under another name and without hooks: what is true of its rules should be of ours."""
    head = f"table {_ip(settings)} {PATTERN} {{"
    lines = [removal_text(settings, PATTERN), head, "  counter race_drops { }"]
    lines += _declarations(settings)
    for chain in _chains(settings):
        lines += _chain_lines(replace(chain, hook=""))
    return "\n".join((*lines, "}", ""))


def bodies_of(settings: TableSettings, rules: Mapping[str, tuple[bytes, ...]]) -> Mapping[str, ChainBody]:
    """The constant chains, with the rules that the kernel made of the pattern."""
    return {one.name: ChainBody(rules.get(one.name, ()), _hook(one)) for one in _chains(settings)}


def constant_chains(settings: TableSettings) -> frozenset[str]:
    return frozenset((LAYOUT, *(chain.name for chain in _chains(settings))))


def _hook(chain: _Chain) -> str:
    return f"{chain.hook}; policy accept" if chain.hook else ""


def layout_text(settings: TableSettings) -> str:
    """What the marker chain says: a digest of the maps. Chains are compared rule by rule, and mended where they are: a
    map that is made anew is empty for packets that are on their way, and forgets its clients."""
    digest = hashlib.sha256("\n".join(_declarations(settings)).encode()).hexdigest()[:16]
    return f"{digest} {settings.family}"


def static_chains() -> Iterator[ChoiceChain]:
    for map_name, prefix in PREFIXES.items():
        for count in range(1, MOST_STATIC + 1):
            yield ChoiceChain(f"{prefix}_{count}", map_name, count)


def structure_damage(settings: TableSettings, state: TableState) -> str:
    """Why this table cannot be kept: a half-sentence; "" if its chains can be mended one by one."""
    expected = layout_text(settings)
    if state.layout_text != expected:
        return f'its maps are "{state.layout_text}", not "{expected}"'
    if state.is_dormant:
        return "it is dormant"
    lost = next((name for name in MAPS if name not in state.content), "")
    return f"map {lost} is missing" if lost else ""


def _check(settings: TableSettings) -> None:
    detection = settings.detection
    if detection.mode == "interface" and not _INTERFACE.fullmatch(detection.interface):
        raise ValueError(
            f'{detection.interface!r}: not an interface name; expected a name like "cni0", or a prefix "veth*"'
        )
    if not 0 < settings.mark <= 0xFFFFFFFF or settings.mark & (settings.mark - 1):
        raise ValueError(f"{settings.mark:#x}: not a mark; expected a single bit such as 0x4000")


def _ip(settings: TableSettings) -> str:
    return "ip" if settings.family == "IPv4" else "ip6"


def _chain_lines(chain: _Chain) -> Iterator[str]:
    yield f"  chain {chain.name} {{"
    if chain.comment:
        yield f'    comment "{chain.comment}"'
    if chain.hook:
        yield f"    {_hook(chain)};"
    yield from (f"    {rule}" for rule in chain.rules)
    yield "  }"


def _declarations(settings: TableSettings) -> Iterator[str]:
    ip = _ip(settings)
    address = "ipv4_addr" if ip == "ip" else "ipv6_addr"
    types = {"address": address, "proto": "inet_proto", "port": "inet_service", "number": "mark"}
    selectors = {"address": f"{ip} daddr", "proto": "meta l4proto", "port": "th dport", "slot": "numgen random mod 1"}
    endpoint = f"{ip} daddr . th dport"
    for one in MAPS.values():
        typed = " . ".join(types.get(part, "") for part in one.key)
        match one.kind:
            case MapKind.VERDICT:
                counter = " counter;" if one.has_counter else ""
                yield f"  map {one.name} {{ type {typed} : verdict;{counter} }}"
            case MapKind.ENDPOINT:
                key = " . ".join(selectors[part] for part in one.key)
                counter = " counter;" if settings.counts_endpoints else ""
                yield f"  map {one.name} {{ typeof {key} : {endpoint};{counter} }}"
            case MapKind.NUMBER:
                yield f"  map {one.name} {{ type {typed} : mark; }}"
            case MapKind.MEMBER:
                yield f"  set {one.name} {{ type {typed}; }}"
            case MapKind.INTERVAL:
                yield f"  set {one.name} {{ type {typed}; flags interval; }}"
    clients = f"type {address} . mark : mark . {address} . inet_service; flags dynamic, timeout; size {MOST_CLIENTS};"
    yield f"  map {CLIENTS} {{ {clients} }}"


def _chains(settings: TableSettings) -> Iterator[_Chain]:
    _check(settings)
    yield from _choices(settings)
    yield from _answers(settings)
    yield from _levels(settings)
    yield _dispatch(settings)
    yield _unserved(settings)
    yield from _hooks(settings)


def _choices(settings: TableSettings) -> Iterator[_Chain]:
    """The slot that was drawn, else the first slot, else drop rather than let it out untranslated."""
    ip = _ip(settings)
    for chain in static_chains():
        key = "meta l4proto . th dport" if chain.map.startswith("np_") else f"{ip} daddr . meta l4proto . th dport"
        draws = (f"dnat {ip} to {key} . numgen random mod {n} map @{chain.map}" for n in (chain.count, 1))
        yield _Chain(chain.name, (*draws, "counter name race_drops drop"))


def _answers(settings: TableSettings) -> Iterator[_Chain]:
    reset = ("meta l4proto tcp reject with tcp reset",) if settings.rejects_with_reset else ()
    yield _Chain("rj", (*reset, "reject"))


def _levels(settings: TableSettings) -> Iterator[_Chain]:
    """What external traffic meets after its frontend was found."""
    ip = _ip(settings)
    mark = f"meta mark set meta mark or {settings.mark:#x}"
    frontend = f"{ip} daddr . meta l4proto . th dport"
    for prefix, key, family in (("x", frontend, "svc"), ("n", "meta l4proto . th dport", "np")):
        to_cluster = f"{key} vmap @{family}_cluster"
        from_pods = (f"{_from_pods(settings)} {to_cluster}",) if settings.detection.mode != "none" else ()
        from_host = f"fib saddr type local {mark} {to_cluster}"
        yield _Chain(f"{prefix}_cluster", (mark, to_cluster, "drop"))
        yield _Chain(f"{prefix}_local", (*from_pods, from_host, f"{key} vmap @{family}_local", "drop"))
    filtered = f"{frontend} . {ip} saddr != @fw_allow drop"
    for target in ("x_cluster", "x_local", "rj"):
        yield _Chain(f"fw_{target.removeprefix('x_')}", (filtered, f"goto {target}"))
    filtered = f"meta l4proto . th dport . {ip} saddr != @np_allow drop"
    for target in ("n_cluster", "n_local", "rj"):
        yield _Chain(f"nfw_{target.removeprefix('n_')}", (filtered, f"goto {target}"))


def _dispatch(settings: TableSettings) -> _Chain:
    ip = _ip(settings)
    mark = f"meta mark set meta mark or {settings.mark:#x}"
    rules = []
    if settings.masquerades_all:
        rules.append(f"{ip} daddr @cluster_ips {mark}")
    elif settings.detection.mode != "none":
        rules.append(f"{_from_pods(settings, negated=True)} {ip} daddr @cluster_ips {mark}")
    loopback = "127.0.0.0/8" if ip == "ip" else "::1"
    everywhere = f"fib daddr type local {ip} daddr != {loopback}"
    on_node = everywhere if settings.has_node_ports_everywhere else f"{ip} daddr @np_addrs"
    rules += [
        f"{ip} daddr . meta l4proto . th dport vmap @services",
        f"{on_node} meta l4proto . th dport vmap @nodeports",
    ]
    return _Chain("dispatch", tuple(rules))


def _unserved(settings: TableSettings) -> _Chain:
    """An address or port of Services that led nowhere."""
    ip = _ip(settings)
    passed = f"{ip} daddr . meta l4proto . th dport @passed return"
    return _Chain("unserved", (passed, f"{ip} daddr @cluster_ips goto rj", f"{ip} daddr @svc_cidrs drop"))


def _hooks(settings: TableSettings) -> Iterator[_Chain]:
    """Chains of type nat see the first packet of a connection alone, so established ones cost nothing. Who serves an
    address is known only after all of them: another proxy may have Services in the same network, and its chains may
    come after ours. So what led nowhere is refused in chains of type filter, which come after translation."""
    ip = _ip(settings)
    bit = f"{settings.mark:#x}"
    marked = f"meta mark and {bit} != 0 meta mark set meta mark xor {bit} masquerade fully-random"
    itself = f"ct status dnat {ip} saddr . {ip} daddr . meta l4proto . th dport @hairpin masquerade fully-random"
    # nft does not take the name dstnat for the hook output.
    yield _Chain("prerouting", ("jump dispatch",), "type nat hook prerouting priority -100")
    yield _Chain("output", ("jump dispatch",), "type nat hook output priority -100")
    yield _Chain("postrouting", (marked, itself), "type nat hook postrouting priority 100")
    untranslated = ("ct state new ct status and dnat == 0 jump unserved",)
    yield _Chain("forwarded", untranslated, "type filter hook forward priority 0")
    yield _Chain("sent", untranslated, "type filter hook output priority 0")
    if settings.drops_invalid:
        yield _Chain("invalid", ("ct state invalid drop",), "type filter hook forward priority 0")


def _from_pods(settings: TableSettings, *, negated: bool = False) -> str:
    sign = "!= " if negated else ""
    if settings.detection.mode == "interface":
        return f'iifname {sign}"{settings.detection.interface}"'
    return f"{_ip(settings)} saddr {sign}@pod_cidrs"


def _key_text(parts: tuple[str, ...], key: bytes) -> str:
    """A key as nft writes it. An address is as wide as what the other parts, of four bytes each, leave over."""
    width = len(key) - 4 * (len(parts) - 1)
    texts: list[str] = []
    at = 0
    for part in parts:
        size = width if part == "address" else 4
        piece = key[at : at + size]
        match part:
            case "address":
                texts.append(str(ipaddress.ip_address(piece)))
            case "proto":
                texts.append(str(piece[0]))
            case _:
                texts.append(str(int.from_bytes(piece[:2], "big")))
        at += size
    return " . ".join(texts)
