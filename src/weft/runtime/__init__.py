"""Plans made executable, and what surrounds a call of one."""
