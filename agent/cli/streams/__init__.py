# SPDX-License-Identifier: Apache-2.0
"""Bytes to and from containers: exec, attach, cp and port-forward."""
