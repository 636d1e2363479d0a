# SPDX-License-Identifier: Apache-2.0
"""When a call may pass: start, stop, the end of a job, and what is known of pods."""
