"""The pages, one a file, each a plain script of calls."""
