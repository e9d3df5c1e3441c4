"""What the master keeps: frozen records in, frozen records out; rows and connections stay inside this package."""
