"""Jobs of the sampler: each reads or checks something at its own period, off the training thread."""
