"""Weft against its peers: each claim of speed is a row here that anyone can run again."""
