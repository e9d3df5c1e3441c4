"""Where tasks run: the resource managers. The engine knows only the protocol in `base`."""
