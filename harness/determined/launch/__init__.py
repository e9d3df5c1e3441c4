"""Launchers: programs that start the processes of a trial."""
