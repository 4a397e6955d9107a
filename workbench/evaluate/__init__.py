"""Evaluation: tasks, the harness that runs methods on them, the run folder, scores with intervals."""
