"""ResourceQuotas: none is lowered below what the migrations under way need.

Promises: what the lowest allowed limit is, is said by the code that the controller plans with.
Forbids: hindering a raise, or any change outside migrations.
"""
