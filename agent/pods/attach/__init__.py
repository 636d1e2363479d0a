# SPDX-License-Identifier: Apache-2.0
"""The pods plane attached: its settings of this moment, its API."""
