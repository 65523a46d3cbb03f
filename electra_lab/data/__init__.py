"""From documents to batches: tokenize once into a store, pack rows, order them by (seed, epoch)."""
