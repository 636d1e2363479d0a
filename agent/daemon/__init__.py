# SPDX-License-Identifier: Apache-2.0
"""The process: wiring, task tree, signals, logs."""
