"""Give each intermediate of a plan with lanes a place: in the arena, in outputs, or where it already is."""
