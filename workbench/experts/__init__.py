"""Experts: one PEFT LoRA adapter read exactly (`lora.py`), and all of them on one base (`bank.py`)."""
