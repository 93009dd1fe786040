"""Compile models ahead of time to objects, shared libraries and C, which run without Jangin."""
