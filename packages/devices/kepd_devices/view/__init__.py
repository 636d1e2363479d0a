# SPDX-License-Identifier: Apache-2.0
"""What people see of devices and claims."""
