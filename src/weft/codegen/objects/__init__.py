"""Text of a module -> machine code, compiled on all cores, kept on disk, loaded into this process."""
