"""The pure core: no sockets, no clock of its own, no framework.

Time, randomness and measurements come in as arguments, so that the frontend, the simulator and the
offline profile run the same code.
"""
