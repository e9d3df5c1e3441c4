"""What the client, the task entry points and the training APIs share."""
