# SPDX-License-Identifier: Apache-2.0
"""Where the plane for names meets Services, pods and drivers."""
