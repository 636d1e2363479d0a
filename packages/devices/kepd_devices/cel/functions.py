# SPDX-License-Identifier: Apache-2.0
"""All functions and signs that expressions know."""

from kepd_devices.cel.addresses import addresses
from kepd_devices.cel.amounts import amounts
from kepd_devices.cel.conversions import conversions
from kepd_devices.cel.lists import lists
from kepd_devices.cel.operators import operators
from kepd_devices.cel.signatures import SignatureTable
from kepd_devices.cel.texts import texts

FUNCTIONS = SignatureTable(operators, texts, lists, amounts, conversions, addresses)
SPACES = frozenset(name.rpartition(".")[0] for name in FUNCTIONS.by_name if "." in name)
