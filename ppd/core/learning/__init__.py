"""The mathematics of the online loop: pure, time and records come in as arguments."""
