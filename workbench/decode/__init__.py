"""Decoding: `branches.py` runs a plan as one model, `engine.py` decodes prompts, `causal_lm.py` is for transformers."""
