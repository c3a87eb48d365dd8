"""The simulated engine: `ppd.core.engine` in real time behind vLLM's HTTP surface."""
