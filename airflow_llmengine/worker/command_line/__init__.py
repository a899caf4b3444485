"""The commands of ``llmengine-batch``: what each is told, and what it does."""
