"""For all tests."""

import os
import signal

import hypothesis

# A run that was started in the background of a script ignores SIGINT, and so would all that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine is no reason to fail. Where CI is set, Hypothesis has a profile without a deadline anyway.
if "CI" not in os.environ:
    hypothesis.settings.register_profile("no-deadline", deadline=None)
    hypothesis.settings.load_profile("no-deadline")

# What somebody exported to try the program, as the quick start has it, is no setting of a test's.
for _name in ("ADMIN_KEY", "API_KEY", "CONFIG", "ENGINE_KEY", "ETCD", "KEYS", "NAMESPACE", "NATS", "PORT"):
    os.environ.pop(f"PPD_{_name}", None)
for _name in [name for name in os.environ if name.startswith("OTEL_") or name == "VLLM_API_KEY"]:
    del os.environ[_name]
