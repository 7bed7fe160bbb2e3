"""List-schedule the tiles of a plan onto lanes, with waits, by what they cost."""
