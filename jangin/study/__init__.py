"""Studies: which engine runs a model fastest on this machine, and with how many joules.

A study times each model in each engine, at each number of threads, batch size and precision. Its rows are
kept as they are measured, so that a study can be resumed. Its report is a page, Markdown and CSV."""
