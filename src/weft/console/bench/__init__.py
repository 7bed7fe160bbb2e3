"""Time a person's own model beside its rivals, in turn, one process each, with the answers compared."""
