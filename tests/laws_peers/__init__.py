"""The laws of masks, labels and draws on other people's trainers: `make laws-peers`."""
