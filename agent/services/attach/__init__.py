# SPDX-License-Identifier: Apache-2.0
"""The services plane attached: its sources, backends, health and API."""
