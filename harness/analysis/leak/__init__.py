"""Whether a run leaks: one series judged as it comes in, the series held against each other, what is said."""
