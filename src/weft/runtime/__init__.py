"""Run plans: machine code, arenas, lane threads, packed weights, and what is known of memory."""
