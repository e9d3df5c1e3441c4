"""The agent daemon: finds the slots of its machine and runs tasks on them for the master."""
