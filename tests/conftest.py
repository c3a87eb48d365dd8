"""For all tests."""

import signal

# A run that was started in the background of a script ignores SIGINT, and so would all that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
