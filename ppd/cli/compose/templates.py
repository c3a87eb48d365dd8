"""The parts of a compose file of engines that do not depend on the placement."""

ENVIRONMENT = """\
x-env: &env
  PPD_ETCD: {etcd}
  PPD_NATS: {nats}
  PPD_NAMESPACE: ${{PPD_NAMESPACE:-default}}
  PPD_LOG_LEVEL: ${{PPD_LOG_LEVEL:-info}}
  PPD_LOG_JSON: "true"
  PPD_ENGINE_LOG: "-"
  PPD_MAX_MODEL_LEN:
  OTEL_EXPORTER_OTLP_ENDPOINT: ${{OTEL_EXPORTER_OTLP_ENDPOINT-{traces}}}
  OTEL_EXPORTER_OTLP_PROTOCOL:
  OTEL_EXPORTER_OTLP_TIMEOUT:
  OTEL_EXPORTER_OTLP_COMPRESSION:
  OTEL_TRACES_SAMPLER:
  OTEL_TRACES_SAMPLER_ARG:
  OTEL_RESOURCE_ATTRIBUTES:
  OTEL_SDK_DISABLED:
  OTEL_EXPORTER_OTLP_HEADERS_FILE: /run/secrets/otlp_headers
  PPD_ENGINE_KEY_FILE: /run/secrets/engine_key
"""

WORKER = """\
x-worker: &worker
  restart: unless-stopped
  init: true
  cap_drop: [ALL]
  security_opt: ["no-new-privileges:true"]
  logging:
    driver: json-file
    options: {{max-size: 10m, max-file: "3"}}
  environment: *env
  secrets: {secrets}
  stop_grace_period: 80s
"""

HEALTHCHECK = """\
x-healthcheck: &healthcheck
  interval: 5s
  timeout: 5s
  retries: 12
  start_period: 20m
"""

SIM = """\
  image: ${PPD_IMAGE:-localhost/ppd/control:0.1.0}
  build:
    context: ../..
    dockerfile: deploy/compose/images/control.Dockerfile
    args:
      BASE: ${PYTHON_IMAGE:-python:3.11.13-slim-bookworm}
  read_only: true
  tmpfs: [/tmp]
  mem_limit: 2g
  pids_limit: 256
"""

# NIXL's handshake binds to an address; `entrypoint` puts the container's own here.
OWN_ADDRESS = """\
  PPD_SIDE_CHANNEL_HOST: own-address
"""

CPU_ENVIRONMENT = """\
  PPD_KV_CACHE_GIB:
  UCX_TLS: tcp
  XDG_CACHE_HOME: /models
"""

CPU = """\
  image: &image ${PPD_CPU_IMAGE:-localhost/ppd/cpu:0.1.0}
  build: &build
    context: ../..
    dockerfile: deploy/compose/images/cpu.Dockerfile
    args:
      BASE: ${PYTHON_IMAGE:-python:3.11.13-slim-bookworm}
      UV_TORCH_BACKEND: ${UV_TORCH_BACKEND:-}
  volumes: ["models:/models"]
  shm_size: 1g
  mem_limit: ${PPD_WORKER_MEMORY:-8g}
  pids_limit: 1024
"""

# The small model is converted once, into the volume that all engines share.
CPU_MODEL = """\
  models:
    image: *image
    build: *build
    environment: {XDG_CACHE_HOME: /models}
    restart: "no"
    network_mode: none
    cap_drop: [ALL]
    command: ["ppd", "model", "prepare"]
    volumes: ["models:/models"]

"""

GPU_ENVIRONMENT = """\
  HF_HOME: /models
  HF_TOKEN_FILE: /run/secrets/hf_token
  CUDA_DEVICE_ORDER: PCI_BUS_ID
  UCX_TLS:
  UCX_NET_DEVICES:
  UCX_TCP_PORT_RANGE:
  UCX_LOG_LEVEL:
"""

# KV moves from GPU to GPU over NVLink only between processes that see both GPUs and share IPC and PID
# namespaces; which GPU an engine computes on is its `--devices`.
GPU = """\
  image: ${PPD_GPU_IMAGE:-localhost/ppd/gpu:0.1.0}
  build:
    context: ../..
    dockerfile: deploy/compose/images/gpu.Dockerfile
    args:
      BASE: ${VLLM_IMAGE:-vllm/vllm-openai:v0.32.0}
  ipc: host
  pid: host
  ulimits:
    memlock: -1
  deploy:
    resources:
      reservations:
        devices:
          - driver: nvidia
            count: all
            capabilities: [gpu]
  volumes: ["models:/models"]
  mem_limit: ${PPD_WORKER_MEMORY:-96g}
  pids_limit: 4096
"""

RDMA = """\
  cap_add: [IPC_LOCK]
  devices: [/dev/infiniband]
"""

# For the exact count of new tokens the frontend reads the engines' tokenizer.
FRONTEND = """\
  frontend:
    volumes: ["models:/models:ro"]

"""

SERVERS = """\
  etcd:
    ports: ["{address}:2379:2379"]

  nats:
    ports: ["{address}:4222:4222"]

"""

MODELS_VOLUME = """\
volumes:
  models:
"""

# Name in /run/secrets, and the variable that names the file; an empty file means none.
SECRETS = {
    "engine_key": "PPD_ENGINE_KEY_FILE",
    "otlp_headers": "OTEL_EXPORTER_OTLP_HEADERS_FILE",
}
GPU_SECRETS = {"hf_token": "HF_TOKEN_FILE"}
