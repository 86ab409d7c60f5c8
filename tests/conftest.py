"""What all tests share."""

import signal

# a test run that was started in the background inherits an ignored SIGINT, and would hand it on to the processes whose
# answer to Ctrl-C is tested
signal.signal(signal.SIGINT, signal.default_int_handler)
