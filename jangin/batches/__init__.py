"""Batch inference on the workers of Dask, Ray and Spark."""
