"""The kit for testing agents, tools and stores built on Outlast."""
