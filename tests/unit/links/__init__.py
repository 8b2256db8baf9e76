"""Links: how the gateway speaks to one worker."""
