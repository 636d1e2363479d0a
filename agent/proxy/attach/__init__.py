# SPDX-License-Identifier: Apache-2.0
"""The proxy plane attached: its endpoint, its view, its API."""
