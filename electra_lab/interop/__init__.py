"""Bridges: other people's code uses the lab, and the lab other people's formats."""
