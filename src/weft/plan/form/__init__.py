"""Define the form of a Plan: its calls and lanes, and which must be done before which by what they touch."""
