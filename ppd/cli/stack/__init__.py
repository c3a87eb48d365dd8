"""The stack of local processes that `ppd up` runs."""
