"""Pages, charts and tables, in HTML and in the terminal. They read files and need no torch."""
