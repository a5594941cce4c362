"""Where the time of a step goes, what bounds a run, and which steps stand out."""
