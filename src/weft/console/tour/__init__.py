"""Run the chapter on this machine: stops that each show code, what it gives here, and whether a claim holds."""
