"""What a step costs by formula: FLOPs, bytes sent, bytes held. No device and no compiler is needed.

Start at `predict.predict`.
"""
