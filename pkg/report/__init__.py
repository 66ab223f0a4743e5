"""What the reading commands (status, explain, plan) say. Nothing that decides imports it."""
