"""One trace under every order."""
