"""Run lanes on threads: wake them, let them wait for each other, and tell when they are worth it."""
