"""The I/O that the services share: etcd, NATS, tracing, logging, supervised tasks, settings."""
