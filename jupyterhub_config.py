"""Detlab on one machine: `jupyterhub` in this folder starts it. `make up` installs it first."""

import os

from detlab_hub import configure

c = get_config()  # type: ignore[name-defined]  # noqa: F821  # JupyterHub puts it here

configure(c, port=int(os.environ.get("PORT", "8080")), folder=os.environ.get("DATA", ".detlab"))

# Anything of JupyterHub can be set below, such as another login:
# c.JupyterHub.authenticator_class = "github"
