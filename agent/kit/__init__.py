# SPDX-License-Identifier: Apache-2.0
"""What the process gives every plane: the configuration in force, logs, events, locks, the runtime."""
