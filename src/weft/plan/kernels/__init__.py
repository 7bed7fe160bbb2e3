"""Say what each kind of kernel of a Plan must be, in a file a kind, with what they share."""
