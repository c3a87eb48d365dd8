"""`ppd doctor`: whether this machine can run a stack, check by check."""
