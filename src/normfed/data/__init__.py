"""Federations: where they come from and how they are held."""
