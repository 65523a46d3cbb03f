"""Pre-trained pairs in use: find replaced tokens, fill masks, corrupt and embed texts."""
