"""View models: the figures of a page, from the rows read for it."""
