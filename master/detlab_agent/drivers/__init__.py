"""How an agent runs containers: one module per runtime."""
