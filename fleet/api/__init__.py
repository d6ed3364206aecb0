"""The doors of the fleet for programs."""
