"""Compile texts of modules to machine code on all cores, keep it on disk, and load it into this process."""
