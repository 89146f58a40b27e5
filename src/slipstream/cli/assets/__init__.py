"""Commands about what runs need beside tasks: models and search indexes."""
