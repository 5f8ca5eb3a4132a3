"""Preparation of images: sizes, crops, scales, and random changes in training."""
