"""The watch over a person's own training script, which runs in this process unchanged.

`launch` runs the script, and `session` opens the watch when training begins. In between, `hooks` turns
torch's own entry points (loaders, forward, backward, optimizer steps) into events, `observation` turns these
into steps, and `tracker` into the phases of a step. `switches` changes settings of the live script.
"""
