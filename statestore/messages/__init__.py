"""The message store: each message once, read by range, forgotten by time and size. Pure.

See docs/how-it-works/message-store.md.
"""
