# SPDX-License-Identifier: Apache-2.0
"""What people see of a pod: status, what it waits for, timeline, forecasts, history."""
