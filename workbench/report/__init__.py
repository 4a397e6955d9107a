"""The result of a run as rows (`summary.py`), as a page (`page.py`), and in Weights & Biases (`wandb.py`)."""
