"""A certificate authority of the tests' own, and certificates for a server on 127.0.0.1 and for a client."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


class Certificates:
    """PEM files in a folder: `ca`, and `server` and `client` with their keys."""

    def __init__(self, folder: Path) -> None:
        self.ca = folder / "ca.pem"
        self.server, self.server_key = folder / "server.pem", folder / "server.key"
        self.client, self.client_key = folder / "client.pem", folder / "client.key"
        self._authority_key = ec.generate_private_key(ec.SECP256R1())
        self._authority = _name("tests' authority")
        self._write_authority()
        self._issue(self.server, self.server_key, "127.0.0.1", ExtendedKeyUsageOID.SERVER_AUTH)
        self._issue(self.client, self.client_key, "client", ExtendedKeyUsageOID.CLIENT_AUTH)

    def context(self) -> ssl.SSLContext:
        """For a server that asks for no certificate."""
        made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        made.load_cert_chain(self.server, self.server_key)
        return made

    def _write_authority(self) -> None:
        key = self._authority_key.public_key()
        usage = x509.KeyUsage(
            digital_signature=True, content_commitment=False, key_encipherment=False,
            data_encipherment=False, key_agreement=False, key_cert_sign=True, crl_sign=True,
            encipher_only=False, decipher_only=False,
        )  # fmt: skip
        builder = (
            _builder(self._authority, self._authority, key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        )
        self.ca.write_bytes(_pem(builder.sign(self._authority_key, hashes.SHA256())))

    def _issue(self, file: Path, key_file: Path, name: str, usage: x509.ObjectIdentifier) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        authority_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._authority_key.public_key())
        builder = (
            _builder(_name(name), self._authority, key.public_key())
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(authority_key, critical=False)
            .add_extension(
                x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
                critical=False,
            )
        )
        file.write_bytes(_pem(builder.sign(self._authority_key, hashes.SHA256())))
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=2))
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
