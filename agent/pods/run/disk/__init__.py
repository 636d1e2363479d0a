# SPDX-License-Identifier: Apache-2.0
"""What pods have on the disk of the node: volumes, hosts file, last words, logs, ids; and how it appears and goes."""
