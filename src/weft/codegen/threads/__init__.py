"""The threads that run lanes: how they are woken, wait for each other, and when they are worth it."""
