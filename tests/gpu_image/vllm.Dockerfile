# In place of vLLM's own image, where that cannot be pulled: vLLM as PyPI has it, in the system's Python.
ARG BASE
FROM ${BASE}
COPY site/ /tmp/site/
RUN cat /tmp/site/*.crt >> /etc/ssl/certs/ca-certificates.crt 2>/dev/null; apt-get update \
 && apt-get install -y --no-install-recommends python3-pip libnuma1 && rm -rf /var/lib/apt/lists/*
ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt PIP_NO_CACHE_DIR=1 PIP_BREAK_SYSTEM_PACKAGES=1 PIP_FIND_LINKS=/tmp/site
ARG VLLM
# vLLM asks for this setuptools on Python 3.12, which its own image has.
RUN python3 -m pip install "vllm==${VLLM}" 'setuptools>=78.1.1,<81'
