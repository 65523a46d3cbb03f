"""Try the results of components before a run; find out why a run diverged."""
