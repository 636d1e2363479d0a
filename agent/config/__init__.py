# SPDX-License-Identifier: Apache-2.0
"""The configuration document: its keys, where values come from, how they are checked, what a reload changes."""
