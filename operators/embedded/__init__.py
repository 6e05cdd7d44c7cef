"""Operators that are called by hand or in a loop, without a job: messages in, panes out, each message once."""
