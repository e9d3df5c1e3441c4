"""What runs inside of a task before, around and instead of the user's program."""
