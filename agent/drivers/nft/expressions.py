# SPDX-License-Identifier: Apache-2.0
"""The expressions of nf_tables that our own rules are made of, and the rules of a choice chain.

Registers are counted in words of four bytes, 0 to 15. Text for nft could not say these rules once their maps
are in the kernel, and has no form at all for affinity that keeps clients of many ports in one map.
"""

import struct
from collections.abc import Iterator

from agent.drivers.netlink.attributes import attribute, nested, number, text
from agent.model.services.nft_table import ChoiceChain

_FIRST_REGISTER = 8
_ADDRESS_WORDS = {"IPv4": 1, "IPv6": 4}
_SOURCE_OFFSET = {"IPv4": 12, "IPv6": 8}
_DESTINATION_OFFSET = {"IPv4": 16, "IPv6": 24}
_PROTOCOL_FAMILY = {"IPv4": 2, "IPv6": 10}
_NETWORK, _TRANSPORT = 1, 2
_UPDATE, _DELETE = 1, 2

SEED = 0x6B657064
"""Of the hash, so that it is the same on all nodes; the kernel would make one up for each rule."""

_AFTER_FRONTEND = 6
"""The key of a frontend ends before this word, whatever its length; the slot number follows."""
_IDENTITY = 15
"""The number of the service port, right behind the client's address."""


def choice_rules(chain: ChoiceChain, family: str) -> Iterator[bytes]:
    """The rules of the chain, each a list of expressions, in order."""
    if chain.timeout_s:
        yield _known_client(chain, family)
        yield _new_client(chain, family)
    yield _hash_slot(chain, family) if chain.hashing else _draw(chain.map, family, chain.count)
    yield _draw(chain.map, family, 1)
    yield _counter("race_drops") + _drop()


def _draw(map_name: str, family: str, count: int) -> bytes:
    first = _frontend_register(map_name, family)
    drawn = _frontend(map_name, family) + _random(_AFTER_FRONTEND, count) + _lookup(map_name, first, 0)
    return drawn + _dnat(family, 0)


def _hash_slot(chain: ChoiceChain, family: str) -> bytes:
    """The slot that the connection's addresses and ports have on every node. The address of a node is no part
    of it where any node may be asked. What is hashed lies where the slot will, and behind it; ports fill whole words,
    the rest of which the kernel clears."""
    size = 4 * _ADDRESS_WORDS[family]
    at = _AFTER_FRONTEND
    parts = [_payload(_NETWORK, _SOURCE_OFFSET[family], size, at)]
    at += _ADDRESS_WORDS[family]
    if chain.hashing == "flow":
        if not chain.map.startswith("np_"):
            parts.append(_payload(_NETWORK, _DESTINATION_OFFSET[family], size, at))
            at += _ADDRESS_WORDS[family]
        parts += [_payload(_TRANSPORT, 0, 2, at), _payload(_TRANSPORT, 2, 2, at + 1)]
        at += 2
    hashed = _hash(_AFTER_FRONTEND, 4 * (at - _AFTER_FRONTEND), _AFTER_FRONTEND, chain.count)
    first = _frontend_register(chain.map, family)
    found = _lookup(chain.map, first, 0)
    return b"".join((*parts, hashed, _frontend(chain.map, family), found, _dnat(family, 0)))


def _known_client(chain: ChoiceChain, family: str) -> bytes:
    """The client's endpoint, while it is a member of the list; each new connection makes it last longer. An
    update of an entry that exists leaves its data alone. In the moment of its expiry it may be written anew, with data
    that are a member of no list: then the next connection draws again."""
    numbers, members = _affinity_maps(chain.map)
    words = _ADDRESS_WORDS[family]
    first = _frontend_register(chain.map, family)
    pad, endpoint = 1, 2
    port = endpoint + words
    number_of_member = port + 1
    return b"".join(
        (
            _veil(family, endpoint),
            _client(family),
            _frontend(chain.map, family),
            _lookup(numbers, first, _IDENTITY),
            _lookup(numbers, first, number_of_member),
            _payload(_TRANSPORT, 2, 2, port),
            _lookup(chain.clients, _IDENTITY - words, pad),
            _lookup(members, endpoint, None),
            _remember(chain, _UPDATE, _IDENTITY - words, endpoint),
            _dnat(family, endpoint),
        )
    )


def _new_client(chain: ChoiceChain, family: str) -> bytes:
    """A drawn endpoint, remembered. An update keeps the data of an entry that exists: the stale one goes first."""
    numbers, _ = _affinity_maps(chain.map)
    key = _IDENTITY - _ADDRESS_WORDS[family]
    first = _frontend_register(chain.map, family)
    pad, endpoint = 1, 2
    return b"".join(
        (
            _veil(family, pad),
            _client(family),
            _frontend(chain.map, family),
            _lookup(numbers, first, _IDENTITY),
            _random(_AFTER_FRONTEND, chain.count),
            _lookup(chain.map, first, endpoint),
            _remember(chain, _DELETE, key, pad),
            _remember(chain, _UPDATE, key, pad),
            _dnat(family, endpoint),
        )
    )


def _veil(family: str, register: int) -> bytes:
    """Bytes of the packet, all of which are written over later, so that nft takes the register for a wide field. nft
    1.0.6 aborts when a key or datum in registers begins with what a map gave, or has it in between: it does not know
    how wide that is. It forgets nothing, however, of a register that is written over together with the one before it;
    hence the pad in the data of `clients`."""
    return _payload(_NETWORK, 8, 4 * (_ADDRESS_WORDS[family] + 2), register)


def _client(family: str) -> bytes:
    """The client's address, and a word behind it that will hold the number of the service port."""
    words = _ADDRESS_WORDS[family]
    return _payload(_NETWORK, _SOURCE_OFFSET[family], 4 * (words + 1), _IDENTITY - words)


def _affinity_maps(map_name: str) -> tuple[str, str]:
    numbers = "np_aff_port" if map_name.startswith("np_") else "aff_port"
    return numbers, "aff_local" if map_name.endswith("_local") else "aff_cluster"


def _frontend_register(map_name: str, family: str) -> int:
    return _AFTER_FRONTEND - 2 - (0 if map_name.startswith("np_") else _ADDRESS_WORDS[family])


def _frontend(map_name: str, family: str) -> bytes:
    """Loads the key of the frontend into the words before `_AFTER_FRONTEND`."""
    register = _frontend_register(map_name, family)
    protocol_and_port = _protocol(_AFTER_FRONTEND - 2) + _payload(_TRANSPORT, 2, 2, _AFTER_FRONTEND - 1)
    if map_name.startswith("np_"):
        return protocol_and_port
    size = 4 * _ADDRESS_WORDS[family]
    return _payload(_NETWORK, _DESTINATION_OFFSET[family], size, register) + protocol_and_port


def _expression(name: str, *data: bytes) -> bytes:
    return nested(1, text(1, name), nested(2, *data))


def _register(kind: int, register: int) -> bytes:
    return number(kind, _FIRST_REGISTER + register)


def _payload(base: int, offset: int, size: int, register: int) -> bytes:
    return _expression("payload", _register(1, register), number(2, base), number(3, offset), number(4, size))


def _protocol(register: int) -> bytes:
    l4proto = 16
    return _expression("meta", number(2, l4proto), _register(1, register))


def _random(register: int, count: int) -> bytes:
    at_random = 1
    return _expression("numgen", _register(1, register), number(2, count), number(3, at_random), number(4, 0))


def _hash(source: int, size: int, destination: int, count: int) -> bytes:
    to_and_from = (_register(1, source), _register(2, destination))
    return _expression(
        "hash", *to_and_from, number(3, size), number(4, count), number(5, SEED), number(6, 0), number(7, 0)
    )


def _lookup(name: str, source: int, destination: int | None) -> bytes:
    """Without a destination: is it a member? If nothing is found, the rule ends here."""
    found = b"" if destination is None else _register(3, destination)
    return _expression("lookup", text(1, name), _register(2, source), found)


def _remember(chain: ChoiceChain, operation: int, key: int, data: int) -> bytes:
    timeout = attribute(6, struct.pack(">Q", chain.timeout_s * 1000))
    target = (text(1, chain.clients), number(3, operation), _register(4, key), _register(5, data))
    return _expression("dynset", *target, timeout)


def _dnat(family: str, register: int) -> bytes:
    dnat = 1
    port = register + _ADDRESS_WORDS[family]
    to = (_register(3, register), _register(5, port))
    return _expression("nat", number(1, dnat), number(2, _PROTOCOL_FAMILY[family]), *to)


def _counter(name: str) -> bytes:
    counter = 1
    return _expression("objref", number(1, counter), text(2, name))


def _drop() -> bytes:
    verdict_register, drop = 0, 0
    return _expression("immediate", number(1, verdict_register), nested(2, nested(2, number(1, drop))))
