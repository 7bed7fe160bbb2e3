"""Programs are compared with the code they were made of: what both leave behind, and the first value that differs."""
