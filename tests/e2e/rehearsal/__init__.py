# SPDX-License-Identifier: Apache-2.0
"""Changes of a random cluster, as `kepctl what-if` foretells them and as Kubernetes carries them out."""
