"""The stages in their order: from what a user gave to machine code, and what is kept of it on disk."""
