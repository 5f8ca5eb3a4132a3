"""Data sets of images: published ones, and those of the user."""
