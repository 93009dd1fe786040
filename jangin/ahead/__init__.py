"""Models compiled ahead of time: objects, shared libraries and C, which need nothing of Jangin to run."""
