# SPDX-License-Identifier: Apache-2.0
"""Making and ending the pods of Deployments, DaemonSets and Jobs."""
