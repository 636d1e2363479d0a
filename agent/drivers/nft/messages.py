# SPDX-License-Identifier: Apache-2.0
"""The types of nf_tables messages that we send or hear.

Source: include/uapi/linux/netfilter/nf_tables.h of the kernel.
"""

from enum import IntEnum

_SUBSYSTEM = 10 << 8


class Message(IntEnum):
    NEW_TABLE = _SUBSYSTEM | 0
    GET_TABLE = _SUBSYSTEM | 1
    DELETE_TABLE = _SUBSYSTEM | 2
    NEW_CHAIN = _SUBSYSTEM | 3
    GET_CHAIN = _SUBSYSTEM | 4
    DELETE_CHAIN = _SUBSYSTEM | 5
    NEW_RULE = _SUBSYSTEM | 6
    GET_RULE = _SUBSYSTEM | 7
    DELETE_RULE = _SUBSYSTEM | 8
    NEW_SET = _SUBSYSTEM | 9
    GET_SET = _SUBSYSTEM | 10
    DELETE_SET = _SUBSYSTEM | 11
    NEW_ELEMENTS = _SUBSYSTEM | 12
    GET_ELEMENTS = _SUBSYSTEM | 13
    DELETE_ELEMENTS = _SUBSYSTEM | 14
    NEW_GENERATION = _SUBSYSTEM | 15
    GET_GENERATION = _SUBSYSTEM | 16
    GET_OBJECT = _SUBSYSTEM | 19
