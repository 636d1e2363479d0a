# SPDX-License-Identifier: Apache-2.0
"""The terminal, the watches and the loop between them."""
