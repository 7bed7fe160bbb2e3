"""Find what a call of small sizes needs of each kernel of a plan: which tiles, and where loops end."""
