"""Tuning and studies on many machines: what to measure where, and whom to believe."""
