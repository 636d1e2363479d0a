# SPDX-License-Identifier: Apache-2.0
"""Asking servers for what is not known here."""
