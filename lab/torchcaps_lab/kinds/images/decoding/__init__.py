"""Files of pictures as numbers, in memory or in a file that is mapped into it."""
