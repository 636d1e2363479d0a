# SPDX-License-Identifier: Apache-2.0
"""Records as people write them, and the numbers of their types."""

from ipaddress import ip_address

from kepd_dns.wire.names import to_text
from kepd_dns.wire.question import AAAA, CNAME, HINFO, MX, NS, PTR, SOA, SRV, TXT, A

TYPES = {"A": A, "NS": NS, "CNAME": CNAME, "SOA": SOA, "PTR": PTR, "HINFO": HINFO, "MX": MX, "TXT": TXT, "AAAA": AAAA,
         "SRV": SRV, "ANY": 255, "HTTPS": 65, "CAA": 257}  # fmt: skip
TYPE_NAMES = {number: name for name, number in TYPES.items()}
CODES = {0: "NOERROR", 1: "FORMERR", 2: "SERVFAIL", 3: "NXDOMAIN", 4: "NOTIMP", 5: "REFUSED", 16: "BADVERS"}


def type_number(text: str) -> int | None:
    upper = text.upper()
    if upper.startswith("TYPE") and upper[4:].isdigit():
        return int(upper[4:]) if int(upper[4:]) < 65536 else None
    return TYPES.get(upper)


def type_text(number: int) -> str:
    return TYPE_NAMES.get(number, f"TYPE{number}")


def data_text(kind: int, data: bytes) -> str:
    """`data` has no compressed names (answer.plain_data)."""
    if kind in (A, AAAA) and len(data) in (4, 16):
        return str(ip_address(data))
    if kind in (CNAME, NS, PTR):
        return to_text(data)
    if kind == SRV:
        numbers = " ".join(str(int.from_bytes(data[at : at + 2], "big")) for at in (0, 2, 4))
        return f"{numbers} {to_text(data[6:])}"
    if kind == MX:
        return f"{int.from_bytes(data[:2], 'big')} {to_text(data[2:])}"
    if kind == TXT and data:
        return ascii(data[1 : 1 + data[0]].decode("ascii", "backslashreplace"))
    return data.hex()
