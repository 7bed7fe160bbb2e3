"""A Region becomes a Plan of few kernels: what is fused with what."""
