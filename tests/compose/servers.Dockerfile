# etcd and NATS where their images cannot be pulled: the binaries that the Python packages of `ppd[servers]` bring.
ARG BASE
FROM ${BASE}
COPY etcd etcdctl nats-server healthy /usr/local/bin/
