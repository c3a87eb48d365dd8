"""Hardware profiles: what one step of an engine costs on one kind of GPU with one model.

A profile is a small JSON file of fitted tables. Those of GPUs come from NVIDIA's measured kernel tables
(`scripts/make_hardware_profile.py`), those of a CPU from a run on its own engines.
"""

from ppd.core.hardware.profile import HardwareError, HardwareProfile, load_profile, names, parse_profile

__all__ = ["HardwareError", "HardwareProfile", "load_profile", "names", "parse_profile"]
