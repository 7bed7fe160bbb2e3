"""Let the processes of one training run sum over all of them, watch each other, and end together."""
