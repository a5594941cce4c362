"""Jobs of the sampler: each reads or checks something at its own pace, away from the training thread."""
