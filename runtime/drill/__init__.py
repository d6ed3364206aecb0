"""The drill: a small real training with real faults, compared bit for bit with its plain twin."""
