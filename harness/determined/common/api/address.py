"""The master's address: where it is taken from, and its one canonical spelling."""

import os
import urllib.parse

DEFAULT_PORT = 8080


def master_from_environment() -> str:
    """`DET_MASTER`, else `DET_MASTER_ADDR`, else this machine."""
    return os.environ.get("DET_MASTER") or os.environ.get("DET_MASTER_ADDR") or "localhost"


def canonical_master_url(address: str) -> str:
    """`scheme://host:port[/prefix]`, without a trailing slash.

    Without a scheme: http and port 8080. With one and no port: 80 or 443. A path prefix is kept.
    Raises ValueError for an address that names no host, or with another scheme.
    """
    text = address.strip()
    default_port = None
    if "://" not in text:
        text, default_port = f"http://{text}", DEFAULT_PORT
    parts = urllib.parse.urlsplit(text)
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"the master's address {address!r} starts with {parts.scheme}://: use http or https")
    try:
        port = parts.port
    except ValueError:
        raise ValueError(f"the master's address {address!r} has a port that is not a number") from None
    if not parts.hostname:
        raise ValueError(f"the master's address {address!r} names no host: write it as host:port")
    if port is None:
        port = default_port or (443 if parts.scheme == "https" else 80)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{port}{parts.path.rstrip('/')}"


def is_loopback(url: str) -> bool:
    """Whether a canonical URL points to this machine."""
    host = urllib.parse.urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")
