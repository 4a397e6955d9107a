"""Decoding: a plan as one model (`branches.py`), prompts (`engine.py`), for transformers (`causal_lm.py`)."""
