"""Runs of groups: who speaks next, what a speaker receives, and the execution of the turns."""
