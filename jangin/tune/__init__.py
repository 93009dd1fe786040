"""Measuring candidates and keeping the quickest."""
