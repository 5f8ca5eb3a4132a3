"""The machinery of the recipes: where networks are trained, what rows and lines are,
result files, tables, commands.
"""
