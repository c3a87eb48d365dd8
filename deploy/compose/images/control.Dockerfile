# The control plane: frontend, planner, agent and simulated engine, as one image. The context is the repository's root.
#
# BASE is any image with Python 3.11 and venv. deploy/compose/site/ may hold what your network needs: see its README.
ARG BASE=python:3.11.13-slim-bookworm

# In a stage of its own, so that what is installed below is installed again only where this list changes.
FROM ${BASE} AS requirements
COPY pyproject.toml deploy/compose/images/requirements /src/
RUN python3 /src/requirements /src/pyproject.toml > /requirements.txt

FROM ${BASE} AS dependencies
COPY deploy/compose/site/ /site/
RUN cat /site/*.crt >> /etc/ssl/certs/ca-certificates.crt 2>/dev/null; python3 -m venv /opt/ppd
ENV PIP_CONFIG_FILE=/site/pip.conf PIP_FIND_LINKS=/site PIP_CERT=/etc/ssl/certs/ca-certificates.crt \
    PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY --from=requirements /requirements.txt /
RUN /opt/ppd/bin/pip install -r /requirements.txt

FROM ${BASE}
LABEL org.opencontainers.image.title="ppd" \
      org.opencontainers.image.description="Control plane for multi-turn LLM serving on prefill/decode disaggregated engines" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 65532 ppd && useradd --uid 65532 --gid 65532 --create-home --home-dir /home/ppd ppd \
 && install -d -o 65532 -g 65532 /models
COPY --from=dependencies /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=dependencies /opt/ppd /opt/ppd
COPY deploy/compose/images/entrypoint deploy/compose/images/healthy /usr/local/bin/
# From here on depends on the code: a change of it rebuilds in seconds.
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
CMD ["ppd", "--help"]
# Last, so that a new version or revision rebuilds nothing.
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.version="${VERSION}" org.opencontainers.image.revision="${REVISION}"
