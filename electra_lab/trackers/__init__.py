"""Trackers: services that collect the records of runs and show them. One file each."""
