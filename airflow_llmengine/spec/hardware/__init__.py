"""What a model needs of GPUs and of their nodes, worked out from its own ``config.json`` and the request. Pure.

``model_facts`` reads a config; ``weights``, ``kv_cache`` and ``engine_memory`` are the arithmetic; ``layout`` says how
GPUs may share a model; ``choice`` takes the cheapest that fits; ``inference`` is the way in.
"""
