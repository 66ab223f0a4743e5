"""headroom: room in a ResourceQuota for live migration."""
