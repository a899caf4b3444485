"""Decorators of the TaskFlow API."""
