"""Training in several processes, on torch.distributed: the process group, reductions, DDP and FSDP2."""
