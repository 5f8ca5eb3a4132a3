"""Around the networks of torchcaps: data sets, tasks, training, reports, the command
line.
"""
