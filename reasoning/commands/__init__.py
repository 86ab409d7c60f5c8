"""Verbs of the `reasoning` command, one file each."""
