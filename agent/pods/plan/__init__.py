# SPDX-License-Identifier: Apache-2.0
"""What happens next to a pod: start, stop, restart, order, probes, resize, shutdown, and what is remembered."""
