"""Syncline: a durable sync router."""
