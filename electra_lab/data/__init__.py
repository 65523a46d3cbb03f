"""From documents to batches: tokenise once into a store, pack rows, order them by (seed, epoch)."""
