"""The options of a training, without torch: words and files as plain values, and what a
path suggests.
"""
