# SPDX-License-Identifier: Apache-2.0
"""A table of nftables by its name, beside the one for Services: its text, elements with a life, and who changes it.

Elements go through netlink, which costs a fiftieth of the nft program.
"""

import errno
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import TypeVar

from agent.drivers.netlink.attributes import ACK, CREATE, REQUEST, attribute, message, nested, number, text
from agent.drivers.netlink.connection import NetlinkConnection, NetlinkSilent, OpenSocket, open_socket
from agent.drivers.nft.binary import run_text
from agent.drivers.nft.dump import chain_facts, object_packets, table_facts
from agent.drivers.nft.elements import additions, deletions
from agent.drivers.nft.kernel_table import failure
from agent.drivers.nft.messages import Message
from agent.drivers.nft.watch import OwnSockets
from agent.model.services.nft_error import OutcomeUnknown
from agent.model.services.nft_table import SetChange, TableFamily

_BEGIN, _END, _NF_TABLES = 0x10, 0x11, 10
_ELEMENTS, _ELEMENT, _KEY, _VALUE, _TIMEOUT = 3, 1, 1, 1, 4
_DEADLINE_S = 30.0
# A nested attribute counts its bytes in sixteen bits.
_MOST_ELEMENTS = 500
_Result = TypeVar("_Result")


class NamedTable:
    """`own_sockets` is shared by the tables of one process that watch each other's changes."""

    def __init__(
        self,
        family: TableFamily,
        name: str,
        *,
        command: Sequence[str] = ("nft",),
        opens: OpenSocket = open_socket,
        own_sockets: OwnSockets | None = None,
    ) -> None:
        self.family: TableFamily = family
        self.name = name
        self._command, self._opens = tuple(command), opens
        self._own = own_sockets or OwnSockets()
        self._connection: NetlinkConnection | None = None

    async def load(self, text_of_table: str) -> None:
        """Run a text as one transaction. Raises NftFailed."""
        with self._own.program():
            await run_text(self._command, text_of_table, _DEADLINE_S, self._own.add_load)

    async def exists(self, *others: str) -> bool:
        """It, or one of another name."""

        def work(connection: NetlinkConnection) -> bool:
            found = connection.dump(Message.GET_TABLE, self.family, b"", _DEADLINE_S)
            return any(table_facts(one).name in (self.name, *others) for one in found.answers)

        return await self._call(work)

    async def input_drops(self) -> Sequence[str]:
        """Chains of others whose policy drops what comes to this host."""

        def work(connection: NetlinkConnection) -> list[str]:
            found = []
            for family in (self.family, "inet"):
                for answer in connection.dump(Message.GET_CHAIN, family, b"", _DEADLINE_S).answers:
                    one = chain_facts(answer)
                    if " hook input " in one.hook and one.hook.endswith("policy drop") and one.table != self.name:
                        found.append(f"chain {one.name} of table {one.table}")
            return found

        return await self._call(work)

    async def counter(self, name: str) -> int:
        """Packets that a named counter counted; 0: there is none."""

        def work(connection: NetlinkConnection) -> int:
            try:
                return object_packets(
                    connection.ask(
                        Message.GET_OBJECT, self.family, text(1, self.name) + text(2, name) + number(3, 1), _DEADLINE_S
                    )
                )
            except OSError as error:
                if error.errno == errno.ENOENT:
                    return 0
                raise

        return await self._call(work)

    async def refresh(self, set_name: str, keys: Iterable[bytes], life_s: int) -> None:
        """Let elements live so long from now on. Adding one that is there does not extend its life, so each goes and
        comes again in one transaction. Raises NftFailed."""
        wanted = tuple(keys)
        life = attribute(_TIMEOUT, (life_s * 1000).to_bytes(8, "big"))
        add = (Message.NEW_ELEMENTS, CREATE, [_element(one, life) for one in wanted])
        await self._transact(set_name, (add, (Message.DELETE_ELEMENTS, 0, [_element(one) for one in wanted]), add))

    async def remove(self, set_name: str, keys: Iterable[bytes]) -> None:
        """Elements that are gone already are added first, so that the transaction works."""
        wanted = tuple(keys)
        add = (Message.NEW_ELEMENTS, CREATE, [_element(one) for one in wanted])
        await self._transact(set_name, (add, (Message.DELETE_ELEMENTS, 0, [_element(one) for one in wanted])))

    async def change(self, changes: Iterable[SetChange], chains: Iterable[str], sets: Iterable[str]) -> None:
        """Elements of several sets, and chains and sets that go after that, in one transaction. Raises NftFailed."""
        steps: list[tuple[Message, int, bytes]] = []
        for one in changes:
            whose, flags = text(1, self.name) + text(2, one.layout.name), {Message.NEW_ELEMENTS: CREATE}
            gone, new = deletions(one.layout, one.family, one.gone), additions(one.layout, one.family, one.new)
            for kind, elements in ((Message.DELETE_ELEMENTS, gone), (Message.NEW_ELEMENTS, new)):
                steps += [
                    (kind, flags.get(kind, 0), whose + nested(_ELEMENTS, *elements[at : at + _MOST_ELEMENTS]))
                    for at in range(0, len(elements), _MOST_ELEMENTS)
                ]
        # What a map leads to may go only after the map was told.
        steps.sort(key=lambda step: step[0] is not Message.DELETE_ELEMENTS)
        steps += [(Message.DELETE_CHAIN, 0, text(1, self.name) + text(3, one)) for one in chains]
        steps += [(Message.DELETE_SET, 0, text(1, self.name) + text(2, one)) for one in sets]
        if steps:
            await self._call(lambda connection: self._commit(connection, steps))

    async def add_chains(self, names: Iterable[str]) -> None:
        """Without rules and hook. For a new chain the nft program reads all rules of all others. Raises NftFailed."""
        steps = [(Message.NEW_CHAIN, CREATE, text(1, self.name) + text(3, one)) for one in names]
        if steps:
            await self._call(lambda connection: self._commit(connection, steps))

    def _commit(self, connection: NetlinkConnection, steps: Sequence[tuple[Message, int, bytes]]) -> None:
        first = connection.take_sequence(len(steps) + 2)
        parts = [message(_BEGIN, REQUEST, first, "", b"", _NF_TABLES)]
        for index, (kind, flags, payload) in enumerate(steps, 1):
            asked = REQUEST | flags | (ACK if index == len(steps) else 0)
            parts.append(message(kind, asked, first + index, self.family, payload))
        parts.append(message(_END, REQUEST, first + len(parts), "", b"", _NF_TABLES))
        refused = connection.transact(b"".join(parts), first, first + len(steps), _DEADLINE_S)
        if refused is not None:
            raise OSError(refused.errno, "refused")

    async def _transact(self, set_name: str, steps: Sequence[tuple[Message, int, Sequence[bytes]]]) -> None:
        whose = text(1, self.name) + text(2, set_name)

        if steps[0][2]:
            plain = [(kind, flags, whose + nested(_ELEMENTS, *elements)) for kind, flags, elements in steps]
            await self._call(lambda connection: self._commit(connection, plain))

    async def _call(self, work: Callable[[NetlinkConnection], _Result]) -> _Result:
        """Small questions, answered within a fraction of a millisecond, so the loop itself asks."""
        try:
            if self._connection is None:
                self._connection = NetlinkConnection(self._opens())
                self._own.add_port(self._connection.port_id)
            return work(self._connection)
        except NetlinkSilent as error:
            raise OutcomeUnknown(f"table {self.name}: {error}; kepd tries again") from error
        except OSError as error:
            raise failure(self.family, error.errno or 0, self.name) from error

    def changes(self) -> AsyncGenerator[str, None]:
        """A sentence for each transaction of others on the table."""
        return self._own.changes(self._opens(), self.family, self.name)

    def close(self) -> None:
        """Let go of the socket; the table stays."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _element(key: bytes, more: bytes = b"") -> bytes:
    return nested(_ELEMENT, nested(_KEY, attribute(_VALUE, key)) + more)
