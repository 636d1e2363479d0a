# SPDX-License-Identifier: Apache-2.0
"""All functions and signs that expressions know."""

from agent.devices.cel.addresses import addresses
from agent.devices.cel.amounts import amounts
from agent.devices.cel.conversions import conversions
from agent.devices.cel.lists import lists
from agent.devices.cel.operators import operators
from agent.devices.cel.signatures import SignatureTable
from agent.devices.cel.texts import texts

FUNCTIONS = SignatureTable(operators, texts, lists, amounts, conversions, addresses)
SPACES = frozenset(name.rpartition(".")[0] for name in FUNCTIONS.by_name if "." in name)
