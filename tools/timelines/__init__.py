"""Pictures of windows and triggers for the documents, drawn from real runs."""
