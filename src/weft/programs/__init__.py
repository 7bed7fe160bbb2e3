"""Run, print, draw, save and load the Program that a user holds."""
