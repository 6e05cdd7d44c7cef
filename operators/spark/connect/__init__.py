"""Jobs on Spark Connect: the client describes and asks, and the driver runs in the server's process of the query."""
