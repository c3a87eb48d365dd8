# One worker without a GPU: vLLM for CPUs, NIXL, and the small model's package. The context is the repository's root.
ARG BASE=python:3.11.13-slim-bookworm

# In a stage of its own, so that what is installed below is installed again only where this list changes.
FROM ${BASE} AS requirements
COPY pyproject.toml deploy/compose/images/requirements /src/
RUN python3 /src/requirements /src/pyproject.toml engine-cpu model-smollm2 > /requirements.txt

FROM ${BASE} AS dependencies
COPY deploy/compose/site/ /site/
RUN cat /site/*.crt >> /etc/ssl/certs/ca-certificates.crt 2>/dev/null; python3 -m venv /opt/ppd
# Which build of torch: see scripts/install-cpu-engine.
ARG UV_TORCH_BACKEND=
ENV PIP_CONFIG_FILE=/site/pip.conf PIP_FIND_LINKS=/site PIP_CERT=/etc/ssl/certs/ca-certificates.crt \
    PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY scripts/install-cpu-engine scripts/uv_settings.py scripts/cpu-overrides.txt scripts/step /scripts/
COPY --from=requirements /requirements.txt /
RUN /scripts/install-cpu-engine /opt/ppd/bin/python -r /requirements.txt && /opt/ppd/bin/pip uninstall -y uv

FROM ${BASE}
LABEL org.opencontainers.image.title="ppd-cpu" \
      org.opencontainers.image.description="vLLM on the CPU with ppd's agent and NIXL connector" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 65532 ppd && useradd --uid 65532 --gid 65532 --create-home --home-dir /home/ppd ppd \
 && install -d -o 65532 -g 65532 /models
COPY --from=dependencies /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=dependencies /opt/ppd /opt/ppd
# vLLM's kernels for CPUs are linked against it.
RUN apt-get update && apt-get install -y --no-install-recommends libnuma1 && rm -rf /var/lib/apt/lists/*
COPY deploy/compose/images/entrypoint deploy/compose/images/healthy /usr/local/bin/
COPY LICENSE README.md pyproject.toml /src/
COPY ppd/ /src/ppd/
COPY controlplane/ /src/controlplane/
COPY planner/ /src/planner/
COPY workers/ /src/workers/
COPY simulator/ /src/simulator/
COPY bench/ /src/bench/
RUN /opt/ppd/bin/pip install --no-cache-dir --no-index --no-deps --no-build-isolation /src
ENV PATH=/opt/ppd/bin:${PATH} PYTHONUNBUFFERED=1 SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
USER 65532:65532
WORKDIR /home/ppd
ENTRYPOINT ["entrypoint"]
CMD ["ppd", "worker", "--help"]
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.version="${VERSION}" org.opencontainers.image.revision="${REVISION}"
