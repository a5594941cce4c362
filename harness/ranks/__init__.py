"""Runs that several processes train together: their start, their places, and commands to all of them."""
