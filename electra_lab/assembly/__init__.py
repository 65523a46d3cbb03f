"""Assembly: the one place where names become objects. Before it everything is data, after it everything is objects."""
