# SPDX-License-Identifier: Apache-2.0
"""systemd-logind, as far as shutdowns go."""
