"""The pair of networks: embeddings, heads, tying. Written once, for every backbone."""
