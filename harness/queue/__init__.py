"""The queue of runs on this machine: one run per device, first in first out, by predicted peak.

`adding` puts entries into the home's file, `placing` decides as a pure function which entry starts where,
`worker` is the process that starts them, and `starting` makes each start happen once.
"""
