"""The reports of status, explain and plan. Nothing that decides imports it."""
