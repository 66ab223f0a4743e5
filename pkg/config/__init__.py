"""This product's controllers by kind (Harvester's pkg/config)."""
