"""Certificates and keys."""

import ssl
import stat
import subprocess
import threading
from socket import create_connection, create_server

import pytest
from cryptography import x509

from fedmrl.errors import UserError
from fedmrl.flower.certificates import fingerprint_in, fingerprint_of, make_certificates, make_node_key


def greeted(folder, authority, host):
    """Whether a TLS client that trusts this authority accepts the server in `folder` under this host name."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "server.pem", folder / "server.key")
    client = ssl.create_default_context(cafile=authority / "ca.crt")
    with create_server(("127.0.0.1", 0)) as listening:

        def serve():
            try:
                with server.wrap_socket(listening.accept()[0], server_side=True) as accepted:
                    accepted.recv(1)
            except (ssl.SSLError, OSError):
                pass

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with (
                create_connection(listening.getsockname()) as plain,
                client.wrap_socket(plain, server_hostname=host) as secured,
            ):
                secured.sendall(b"x")
            return True
        except ssl.SSLError:
            return False
        finally:
            thread.join()


@pytest.mark.parametrize(
    ("host", "good"), [("fl.example.org", True), ("10.1.2.3", True), ("localhost", True), ("127.0.0.1", True), ("b.org", False)]
)
def test_a_client_accepts_the_server_under_its_hosts_alone(tmp_path, host, good):
    make_certificates(tmp_path, ["fl.example.org", "10.1.2.3"])
    assert greeted(tmp_path, tmp_path, host) is good


def test_a_client_refuses_a_server_of_another_authority(tmp_path):
    make_certificates(tmp_path / "a", ["localhost"])
    make_certificates(tmp_path / "b", ["localhost"])
    assert not greeted(tmp_path / "a", tmp_path / "b", "localhost")


def test_a_renewed_certificate_needs_no_new_authority(tmp_path):
    make_certificates(tmp_path, ["localhost"])
    authority, first = (tmp_path / "ca.crt").read_bytes(), (tmp_path / "server.pem").read_bytes()
    make_certificates(tmp_path, ["localhost"])
    assert (tmp_path / "ca.crt").read_bytes() == authority
    assert (tmp_path / "server.pem").read_bytes() != first
    assert greeted(tmp_path, tmp_path, "localhost")


def test_only_the_owner_reads_secret_files(tmp_path):
    make_certificates(tmp_path, ["localhost"])
    make_node_key(tmp_path / "north")
    modes = {name: stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("ca.key", "server.key", "north", "ca.crt")}
    assert modes == {"ca.key": 0o600, "server.key": 0o600, "north": 0o600, "ca.crt": 0o644}


def test_the_keys_are_p384(tmp_path):
    make_certificates(tmp_path, ["localhost"])
    for name in ("ca.crt", "server.pem"):
        assert x509.load_pem_x509_certificate((tmp_path / name).read_bytes()).public_key().curve.name == "secp384r1"


@pytest.mark.parametrize("host", ["", "a b", "fl.example.org:8443", "x" * 300])
def test_what_is_no_host_is_refused_before_anything_is_written(tmp_path, host):
    with pytest.raises(UserError, match="no host name"):
        make_certificates(tmp_path / "new", [host])
    assert not (tmp_path / "new").exists()


def test_a_node_key_is_never_overwritten(tmp_path):
    make_node_key(tmp_path / "north")
    before = (tmp_path / "north").read_bytes()
    make_node_key(tmp_path / "north")
    assert (tmp_path / "north").read_bytes() == before


def test_a_public_key_that_is_missing_is_made_from_the_private_one(tmp_path):
    make_node_key(tmp_path / "north")
    before = (tmp_path / "north.pub").read_bytes()
    (tmp_path / "north.pub").unlink()
    make_node_key(tmp_path / "north")
    assert (tmp_path / "north.pub").read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"x", b"-----BEGIN OPENSSH PRIVATE KEY-----\n"])
def test_a_damaged_node_key_is_named_and_kept(tmp_path, content):
    (tmp_path / "north").write_bytes(content)
    with pytest.raises(UserError, match="north holds no key"):
        make_node_key(tmp_path / "north")
    assert (tmp_path / "north").read_bytes() == content and not (tmp_path / "north.pub").exists()


def test_a_key_has_one_fingerprint_in_both_formats(tmp_path):
    make_node_key(tmp_path / "north")
    pem = subprocess.run(
        ["ssh-keygen", "-e", "-m", "PKCS8", "-f", str(tmp_path / "north.pub")], check=True, capture_output=True
    ).stdout
    assert fingerprint_of(pem) == fingerprint_in(tmp_path / "north.pub")
    assert fingerprint_of(b"") is None


@pytest.mark.parametrize("content", [None, b"", b"hello", b"ssh-rsa AAAA"])
def test_what_is_no_public_key_is_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "north.pub").write_bytes(content)
    with pytest.raises(UserError, match=r"north\.pub"):
        fingerprint_in(tmp_path / "north.pub")
