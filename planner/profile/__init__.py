"""Measures the PPD table on a live cluster, through the frontend that serves it."""
