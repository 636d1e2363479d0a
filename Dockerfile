# SPDX-License-Identifier: Apache-2.0
# kepd for a DaemonSet. `scripts/image` builds it, with bases by digest where it is told them:
#   scripts/image --base docker.io/library/debian@sha256:…
# Root, because containerd's socket and the files of a node are root's and Kubernetes gives no capabilities to others;
# what root may do there is said in deploy/base/daemonset.yaml.
ARG BASE=docker.io/library/debian:12-slim

FROM ${BASE} AS build
ARG SOURCE_DATE_EPOCH=0
ENV SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH} PYTHONDONTWRITEBYTECODE=1
RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
# Not /usr/local/bin: the names are found through PATH in the last stage.
RUN LOCK=runtime PREFIX=/opt/kepd LIBDIR=/out/lib BINDIR=/out/bin SYSCONFDIR=/out/etc scripts/install \
    && rm -rf /opt/kepd/lib/python3*/site-packages/pip* /opt/kepd/bin/pip* /opt/kepd/share

# Debian's packages, and then whatever nobody in the container should have.
FROM ${BASE} AS root
RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends python3-minimal libpython3-stdlib nftables iptables conntrack \
        python3-iptables \
    && update-alternatives --set iptables /usr/sbin/iptables-nft \
    && update-alternatives --set ip6tables /usr/sbin/ip6tables-nft \
    && rm -rf /var/lib/apt/lists/* /var/log/* /var/cache/* /usr/share/doc /usr/share/man /usr/share/locale
COPY --from=build /opt/kepd /opt/kepd
# The list of parts is made where Debian's are known.
COPY --from=build /src/scripts /src/scripts
COPY --from=build /src/agent/__init__.py /src/agent/__init__.py
ARG SOURCE_DATE_EPOCH=0
RUN SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH} python3 /src/scripts/sbom.py --debian /var/lib/dpkg/status > /opt/kepd/sbom.spdx.json \
    && rm -rf /src
# What is left of Debian's programs is what kepd calls, and ldconfig, by which python-iptables finds its libraries. The last thing that a shell does here is to take itself away.
RUN rm -rf /etc/pip.conf /usr/lib/apt /usr/lib/*/perl-base /usr/share/perl5 /usr/libexec /usr/local /var/lib/apt \
    && find /usr/bin /usr/sbin ! -type d ! -name 'python3*' ! -name nft ! -name conntrack ! -name 'iptables*' \
        ! -name 'ip6tables*' ! -name 'xtables-*' ! -name ldconfig -delete

# One layer, so that what was removed is not in another.
FROM scratch
ARG VERSION=0
LABEL org.opencontainers.image.title="kepd" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
COPY --from=root / /
ENV PATH=/opt/kepd/bin:/usr/sbin:/usr/bin:/sbin:/bin PYTHONDONTWRITEBYTECODE=1
USER 0:0
ENTRYPOINT ["/opt/kepd/bin/kepd"]
CMD ["run"]
