"""Damage to every durable file of a root: detected, or without effect."""
