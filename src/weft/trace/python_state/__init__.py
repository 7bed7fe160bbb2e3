"""Follow what traced code reads and changes in Python objects: facts of its programs, and their effects."""
