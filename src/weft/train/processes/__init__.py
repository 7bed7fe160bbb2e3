"""The processes of one training run: they are counted, watched, heard, and end together."""
