"""What components return, tried before a run; why a run diverged."""
