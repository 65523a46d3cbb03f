"""Trackers: programs and services beside the lab that collect runs and show them. One file each."""
