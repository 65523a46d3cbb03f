"""What lets other people's code use the lab, and the lab other people's formats."""
