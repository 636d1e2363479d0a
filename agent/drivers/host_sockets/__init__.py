# SPDX-License-Identifier: Apache-2.0
"""TCP sockets of this host's own processes."""
