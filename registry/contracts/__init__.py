"""Protocols and the frozen values that cross the border between the lab and a component, one file per kind."""
