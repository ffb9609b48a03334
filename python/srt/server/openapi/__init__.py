"""What /openapi.json says."""
