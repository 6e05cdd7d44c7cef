"""How a job starts and stays alive: policy, heartbeat, the budget of a restore."""
