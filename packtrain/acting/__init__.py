"""Who chooses the action: policies over networks, and the loop that walks them through environments."""
