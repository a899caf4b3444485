"""Replicas that span several nodes: the leader's line to its followers, and what a follower does."""
