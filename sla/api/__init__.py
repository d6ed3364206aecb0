"""The doors of the books for billing systems (wire.md section 2)."""
