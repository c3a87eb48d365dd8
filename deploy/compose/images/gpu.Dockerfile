# One worker with a GPU: the official vLLM image plus this project. The context is the repository's root.
ARG BASE=vllm/vllm-openai:v0.32.0

# In a stage of its own, so that what is installed below is installed again only where this list changes.
FROM ${BASE} AS requirements
COPY pyproject.toml deploy/compose/images/requirements /src/
RUN python3 /src/requirements /src/pyproject.toml engine-gpu > /requirements.txt

# What the image lacks goes into an environment on top of its packages. They stay as they are: as pip's constraints,
# so that a version that does not fit ends the build. If the image has a NIXL, it is the one that its vLLM is for.
FROM ${BASE} AS dependencies
COPY deploy/compose/site/ /site/
RUN cat /site/*.crt >> /etc/ssl/certs/ca-certificates.crt 2>/dev/null; python3 -m venv /opt/ppd \
 && /opt/ppd/bin/pip uninstall -y setuptools \
 && python3 -c 'import site; print(*site.getsitepackages(), sep="\n")' \
    > "$(/opt/ppd/bin/python -c 'import site; print(site.getsitepackages()[0])')/base.pth"
ENV PIP_CONFIG_FILE=/site/pip.conf PIP_FIND_LINKS=/site PIP_CERT=/etc/ssl/certs/ca-certificates.crt \
    PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY deploy/compose/images/installed /src/
COPY --from=requirements /requirements.txt /
RUN python3 /src/installed > /base.txt \
 && if grep -q '^nixl\b' /base.txt; then sed -i '/^nixl\b/d' /requirements.txt; fi \
 && /opt/ppd/bin/pip install -c /base.txt -r /requirements.txt

FROM ${BASE}
LABEL org.opencontainers.image.title="ppd-gpu" \
      org.opencontainers.image.description="vLLM on a GPU with ppd's agent and NIXL connector" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 65532 ppd && useradd --uid 65532 --gid 65532 --create-home --home-dir /home/ppd ppd \
 && install -d -o 65532 -g 65532 /models
COPY --from=dependencies /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=dependencies /opt/ppd /opt/ppd
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
