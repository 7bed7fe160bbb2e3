"""A plan with lanes -> a place for each intermediate: in the arena, in outputs, or where it already is."""
