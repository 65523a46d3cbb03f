"""Sources of text: files, the records in them, datasets of the hub, and the documentation of the installed Python."""
