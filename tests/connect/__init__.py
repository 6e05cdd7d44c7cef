"""Jobs on Spark Connect: what is decided without a server, and kills of each end against a real one."""
