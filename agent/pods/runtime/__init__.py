# SPDX-License-Identifier: Apache-2.0
"""What the runtime is given and what it reports: configuration, environment, groups, volumes, observation."""
