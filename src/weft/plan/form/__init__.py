"""The form of a Plan: its calls and lanes, what each call touches, and which must be done before which."""
