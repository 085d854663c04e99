"""Certificates of a server, and the keys by which it knows its clients, as files that Flower reads."""

import datetime
import ipaddress
import re
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedmrl.errors import UserError
from fedmrl.files import replacing, sha256_of_bytes

_CURVE = ec.SECP384R1
_SKEW = datetime.timedelta(hours=1)  # clients' clocks may be behind


def make_certificates(folder: Path, hosts: Sequence[str], days: int = 825) -> None:
    """Writes an authority (`ca.key`, `ca.crt`) and a server's certificate (`server.key`, `server.pem`) for these hosts.

    An authority that is there is kept, so that clients need no new `ca.crt` when the server's certificate is renewed.
    """
    names = _alternative_names(hosts)
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.datetime.now(datetime.UTC)
    if (folder / "ca.key").exists():
        authority, issuer = _authority(folder)
    else:
        authority = ec.generate_private_key(_CURVE())
        issuer = _name(f"fedmrl authority of {hosts[0]}")
        certificate = (
            _certificate(issuer, issuer, authority, now, 3650)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .sign(authority, hashes.SHA384())
        )
        _write(folder / "ca.key", _pem(authority), secret=True)
        _write(folder / "ca.crt", certificate.public_bytes(serialization.Encoding.PEM))
    server = ec.generate_private_key(_CURVE())
    certificate = (
        _certificate(_name(hosts[0]), issuer, server, now, days)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
        .sign(authority, hashes.SHA384())
    )
    _write(folder / "server.key", _pem(server), secret=True)
    _write(folder / "server.pem", certificate.public_bytes(serialization.Encoding.PEM))


def make_node_key(path: Path) -> None:
    """Writes a client's private key to `path`, and its public key, for the server, beside it as `path.pub`.

    A private key that is there is kept, as a new one would have to be registered again.
    """
    if path.exists():
        key = _node_key(path)
    else:
        key = ec.generate_private_key(_CURVE())
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, private, secret=True)
    _write(
        path.with_name(f"{path.name}.pub"),
        key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH) + b"\n",
    )


def _node_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """The private key in a client's file."""
    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), None)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); run this as its owner") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UserError(f"{path} holds no key without a password; move it away to make a new one") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UserError(f"{path} holds another kind of key; move it away to make a new one")
    return key


def check_authority(path: Path) -> None:
    """Raises `UserError` unless a file holds certificates and no private key."""
    advice = "name the ca.crt that the server's operator gave you"
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise UserError(f"{path} is not there; {advice}") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); {advice}") from error
    if b"PRIVATE KEY" in content:
        raise UserError(f"{path} holds a private key, which nobody but its owner may have; {advice}")
    try:
        x509.load_pem_x509_certificates(content)
    except ValueError as error:
        raise UserError(f"{path} holds no certificate; {advice}") from error


def check_address(address: str) -> None:
    """Raises `UserError` unless an address is a host and a port."""
    host, _, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    try:
        _alternative_names([host[1:-1] if bracketed else host])
        is_port = port.isascii() and port.isdecimal() and len(port) <= 5 and 1 <= int(port) <= 65535
    except UserError:
        is_port = False
    if not is_port or (":" in host and not bracketed):
        raise UserError(
            f"server is {address!r}; give host and port, as in fl.example.org:8443 or [2001:db8::1]:8443, "
            "with a port from 1 to 65535"
        )


def fingerprint_in(path: Path) -> str:
    """The fingerprint of the public key in a client's `.pub` file."""
    try:
        key = serialization.load_ssh_public_key(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); name the .pub file that the client sent") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UserError(f"{path} holds no public key; name the .pub file that the client sent") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, _CURVE):
        raise UserError(f"{path} holds another kind of key; make one by 'fedmrl client init', or by ssh-keygen -t ecdsa -b 384")
    return _fingerprint(key)


def fingerprint_of(pem: bytes) -> str | None:
    """The fingerprint of a public key in PEM, as Flower reports it of a node; None if there is no such key."""
    try:
        key = serialization.load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm):
        return None
    return _fingerprint(key)


def _fingerprint(key: PublicKeyTypes) -> str:
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return sha256_of_bytes(der)


def _alternative_names(hosts: Sequence[str]) -> list[x509.GeneralName]:
    """The hosts as names in a certificate; its own machine's come with them, as the ServerApp connects there."""
    names: list[x509.GeneralName] = []
    for host in dict.fromkeys([*hosts, "localhost", "127.0.0.1"]):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            try:
                names.append(x509.DNSName(host.encode("idna").decode()))
            except UnicodeError as error:
                raise UserError(f"{host!r} is no host name or address; write it without port, as in fl.example.org") from error
            if not re.fullmatch(r"[A-Za-z0-9*.-]{1,253}", names[-1].value):
                raise UserError(f"{host!r} is no host name or address; write it without port, as in fl.example.org") from None
    return names


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime.datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _authority(folder: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Name]:
    """The authority in a folder, and its name."""
    try:
        key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
        subject = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes()).subject
    except (OSError, ValueError) as error:
        raise UserError(
            f"{folder} holds an authority that cannot be read; move ca.key and ca.crt away to make new ones"
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UserError(f"{folder / 'ca.key'} holds another kind of key; move ca.key and ca.crt away to make new ones")
    return key, subject


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _write(path: Path, content: bytes, secret: bool = False) -> None:
    """Writes a file atomically; a secret one is never readable by others, not even while it is written."""
    with replacing(path) as part:
        part.unlink(missing_ok=True)
        part.touch(0o600 if secret else 0o644, exist_ok=False)
        part.write_bytes(content)
