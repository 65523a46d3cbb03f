"""Budget, memory, time: the dry run."""
