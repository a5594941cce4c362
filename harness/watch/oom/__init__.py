"""Out of memory: recognize it, capture what there is, and report it."""
