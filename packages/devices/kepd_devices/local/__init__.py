# SPDX-License-Identifier: Apache-2.0
"""kepd's own drivers: devices named in the configuration, and the fake one."""
