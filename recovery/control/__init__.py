"""Requests to a job that runs elsewhere: who asks, and the run that is asked."""
