"""Split batches over devices, and sum what the devices computed."""
