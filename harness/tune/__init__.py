"""The search for the fastest settings of a model on this device, within a time budget (docs/tune.md).

`tuning` runs one comparison after the other; `planning` decides which comes next, as a pure function of the
results so far, so that an interrupted tune continues from its file.
"""
