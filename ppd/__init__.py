"""PPD: routing of multi-turn LLM traffic on prefill/decode disaggregated engines."""
