"""What every operator is: the plan, the transition of a step, the classification of events. Pure."""
