"""A person's own model beside its rivals: timed in turn, one process each, with the answers compared."""
