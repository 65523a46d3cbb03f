"""Samplers, one a file. Contract: registry.contracts.Sampler; logits arrive in float32, special ids at -inf."""
