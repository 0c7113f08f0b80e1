"""A plan for people and scripts: one sentence, JSON, Markdown, HTML with a picture, and ready settings."""
