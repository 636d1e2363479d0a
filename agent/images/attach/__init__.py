# SPDX-License-Identifier: Apache-2.0
"""The images plane attached: its sources, registries and API."""
