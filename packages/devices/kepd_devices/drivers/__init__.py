# SPDX-License-Identifier: Apache-2.0
"""How devices are reached: sockets of plugins and drivers, and the API that drivers speak to."""
