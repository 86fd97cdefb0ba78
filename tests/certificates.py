"""Certificates for tests' own servers on loopback."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Certificate:
    """A certificate that has signed itself, so that whoever trusts it trusts its server, and its key."""

    path: str
    key: str

    @property
    def server_options(self) -> tuple[str, ...]:
        """What a Redis server is told to use it."""
        return ("--tls-cert-file", self.path, "--tls-key-file", self.key, "--tls-auth-clients", "no")


def make_certificate(folder: Path, name: str) -> Certificate:
    """Makes one for 127.0.0.1; without OpenSSL's command, a laptop skips the test and CI fails it."""
    if shutil.which("openssl") is None and not os.environ.get("CI"):
        pytest.skip("no openssl command is here to make certificates")
    one = Certificate(str(folder / f"{name}.pem"), str(folder / f"{name}.key"))
    options = ("-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1")
    command = ("openssl", "req", "-x509", *options, "-keyout", one.key, "-out", one.path)
    subprocess.run(command, check=True, capture_output=True)
    return one
