"""Runs of several processes: the state that their ranks explain, and the rank that the others wait for."""
