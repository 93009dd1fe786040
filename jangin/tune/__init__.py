"""Tune kernels: measure candidates and keep the quickest."""
