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
