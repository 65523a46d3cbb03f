"""The two-network pair: embeddings, heads, tying. Written once, so they hold for every backbone."""
