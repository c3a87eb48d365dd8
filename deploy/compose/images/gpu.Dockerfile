# One worker with a GPU: the official vLLM image plus this project. The context is the repository's root.
ARG BASE=vllm/vllm-openai:v0.32.0
FROM ${BASE}
LABEL org.opencontainers.image.title="ppd-gpu" \
      org.opencontainers.image.description="vLLM on a GPU with ppd's agent and NIXL connector" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 65532 ppd && useradd --uid 65532 --gid 65532 --create-home --home-dir /home/ppd ppd \
 && install -d -o 65532 -g 65532 /models
COPY deploy/compose/site/ /site/
RUN cat /site/*.crt >> /etc/ssl/certs/ca-certificates.crt 2>/dev/null; true
ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt PIP_CERT=/etc/ssl/certs/ca-certificates.crt
COPY pyproject.toml deploy/compose/images/requirements /src/
# The image has the vllm that pyproject.toml asks for; another version would be replaced here, visibly and slowly.
RUN python3 /src/requirements /src/pyproject.toml engine-gpu > /src/requirements.txt \
 && PIP_CONFIG_FILE=/site/pip.conf python3 -m pip install --no-cache-dir --break-system-packages \
    -r /src/requirements.txt \
 && rm -rf /site
COPY deploy/compose/images/entrypoint deploy/compose/images/healthy /usr/local/bin/
COPY LICENSE README.md /src/
COPY ppd/ /src/ppd/
COPY controlplane/ /src/controlplane/
COPY planner/ /src/planner/
COPY workers/ /src/workers/
COPY simulator/ /src/simulator/
COPY bench/ /src/bench/
RUN python3 -m pip install --no-cache-dir --break-system-packages --no-deps --no-build-isolation /src
ENV PYTHONUNBUFFERED=1
USER 65532:65532
WORKDIR /home/ppd
ENTRYPOINT ["entrypoint"]
CMD ["ppd", "worker", "--help"]
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.version="${VERSION}" org.opencontainers.image.revision="${REVISION}"
