"""PyTorch's operators become small ops: a table of rules a file."""
