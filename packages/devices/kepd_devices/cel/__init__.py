# SPDX-License-Identifier: Apache-2.0
"""The expressions by which claims and classes select devices."""
