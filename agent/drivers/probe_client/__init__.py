# SPDX-License-Identifier: Apache-2.0
"""Questions to containers over the network, for probes and hooks."""
