# The image, with a container engine: `docker build .`, which has not been tried. `make image` needs no engine; its image has
# no shell and no package manager.
# BUILD_IMAGE and BASE_IMAGE need the same Python at the same path: the command `headroom` names it. Both are the index of
# python:3.11-slim-bookworm (amd64, arm64) by its digest; a release takes the newest one (`skopeo inspect --raw
# docker://python:3.11-slim-bookworm | sha256sum`). The image of `make image` has no base image: its packages are checked
# by hash, and its SBOM has the hashes.
ARG BUILD_IMAGE=python:3.11-slim-bookworm@sha256:b18992999dbe963a45a8a4da40ac2b1975be1a776d939d098c647482bcad5cba
ARG BASE_IMAGE=python:3.11-slim-bookworm@sha256:b18992999dbe963a45a8a4da40ac2b1975be1a776d939d098c647482bcad5cba

FROM ${BUILD_IMAGE} AS build
WORKDIR /src
COPY requirements-run.lock ./
RUN pip install --no-cache-dir --no-deps --require-hashes --only-binary :all: --target /app -r requirements-run.lock \
 && rm -rf /app/bin
COPY setup.cfg pyproject.toml README.md requirements.lock ./
COPY kubeloop kubeloop
COPY pkg pkg
RUN sed -n '/^setuptools==/,/# via/p' requirements.lock > /tmp/build.lock \
 && pip install --no-cache-dir --no-deps --require-hashes --only-binary :all: -r /tmp/build.lock \
 && pip install --no-cache-dir --no-deps --no-build-isolation --target /app . \
 && python -m compileall -q --invalidation-mode=unchecked-hash -s /app -p /app /app

FROM ${BASE_IMAGE}
ARG VERSION=0.2.0
LABEL org.opencontainers.image.title="headroom" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.description="Keeps ResourceQuota from blocking live migration of VMs"
COPY --from=build /app /app
ENV PATH=/app/bin:$PATH PYTHONPATH=/app PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
USER 65532:65532
ENTRYPOINT ["headroom"]
