"""Who made a run: an Ed25519 signature (RFC 8032) over its manifest.

The harness signs when a run ends.  A manifest binds every primary file, so the signature shows: a holder of this key
recorded exactly these files.  It does not say that what they show is true.

Every machine makes a key of its own at first use.  It stands in a folder beside the cache that only its user can open:

    ed25519         the private key, in OpenSSH's format; KRUCIBLE_SIGNING_KEY names another, e.g. that of a CI
    ed25519.pub     its public key, a line to give to others
    trusted_keys    public keys that this user trusts, one a line as in OpenSSH's authorized_keys; may be missing

The last two always lie beside the private key.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)

from checkers.base.cache_folder import cache_folder

KEY_VARIABLE = "KRUCIBLE_SIGNING_KEY"
TRUSTED_KEYS = "trusted_keys"
_SUBJECT = b"krucible manifest\n"
"""Goes before what is signed, so that no signature for another purpose counts here."""


class WrongKey(ValueError):
    """The signing key cannot be used; the message says in one sentence which file, why, and what to do."""


class SignedBy(StrEnum):
    """Record of what the signature of a run shows."""

    THIS_MACHINE = "this machine"
    KNOWN_KEY = "a known key"
    UNKNOWN_KEY = "an unknown key"
    NOBODY = "nobody"
    CHANGED = "changed"
    """There is a signature, and it is not one of this content."""


@dataclass(frozen=True, slots=True)
class Signer:
    """key: fingerprint of the public key, as `ssh-keygen -l` shows it; "" without a signature.  name: the comment that
    stands beside a known key."""

    by: SignedBy
    key: str = ""
    name: str = ""

    @property
    def trusted(self) -> bool:
        """Return whether code that this signer recorded may be executed."""
        return self.by in (SignedBy.THIS_MACHINE, SignedBy.KNOWN_KEY)

    @property
    def words(self) -> str:
        """One clause for a reader, such as "signed by this machine (SHA256:…)"."""
        match self.by:
            case SignedBy.NOBODY:
                return "unsigned: nothing shows who made this run, or whether all of it was changed since"
            case SignedBy.CHANGED:
                return "signed, but its signature does not match: the manifest was changed after it was signed"
            case SignedBy.KNOWN_KEY if self.name:
                return f"signed by the known key of {self.name} ({self.key})"
            case SignedBy.UNKNOWN_KEY:
                return f"signed by an unknown key ({self.key})"
            case _:
                return f"signed by {self.by} ({self.key})"

    def to_json(self) -> dict[str, str]:
        return {"by": str(self.by), "key": self.key, "words": self.words}


def sign(content: bytes) -> dict[str, str]:
    """The public key of this machine and its signature of the content, both as text.  Raises WrongKey."""
    key = own_key()
    signature = base64.b64encode(key.sign(_SUBJECT + content)).decode()
    return {"public_key": _line_of(key.public_key()), "signature": signature}


def signer_of(content: bytes, signed: object) -> Signer:
    """Who signed the content.  signed: as `sign` returned it, read from a file of anybody; None: nothing."""
    if signed is None:
        return Signer(SignedBy.NOBODY)
    if not isinstance(signed, Mapping):
        return Signer(SignedBy.CHANGED)
    try:
        key = _public(str(signed["public_key"]))
        key.verify(base64.b64decode(str(signed["signature"]), validate=True), _SUBJECT + content)
    except (KeyError, ValueError, UnsupportedAlgorithm, InvalidSignature, binascii.Error):
        return Signer(SignedBy.CHANGED)
    line = _line_of(key)
    if line == _own_line():
        return Signer(SignedBy.THIS_MACHINE, _fingerprint(line))
    name = _trusted().get(line)
    if name is not None:
        return Signer(SignedBy.KNOWN_KEY, _fingerprint(line), name)
    return Signer(SignedBy.UNKNOWN_KEY, _fingerprint(line))


def own_key() -> Ed25519PrivateKey:
    """The key of this machine, made at first use.  Raises WrongKey."""
    path = key_path()
    try:
        if KEY_VARIABLE not in os.environ:
            _make_once(path)
        key = load_ssh_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as problem:
        why = problem.strerror if isinstance(problem, OSError) else str(problem)
        raise WrongKey(f"the signing key {path} cannot be used ({why}): {_remedy()}") from problem
    if not isinstance(key, Ed25519PrivateKey):
        raise WrongKey(f"the signing key {path} is none of Ed25519: {_remedy()}")
    return key


def key_path() -> Path:
    """The file of the private key."""
    if given := os.environ.get(KEY_VARIABLE):
        return Path(given)
    cache = cache_folder()
    return cache.with_name(f"{cache.name}-keys") / "ed25519"


def _remedy() -> str:
    if KEY_VARIABLE in os.environ:
        return f"{KEY_VARIABLE} must name a key without a passphrase, as `ssh-keygen -t ed25519 -N ''` makes it"
    return "remove it, and another one is made"


def _make_once(path: Path) -> None:
    """Make the key if there is none.  Of two that do so at once, one wins.  Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.parent.stat().st_uid != os.getuid():
        raise PermissionError(0, f"{path.parent} belongs to another user")
    if path.exists():
        return
    key = Ed25519PrivateKey.generate()
    descriptor, fresh = tempfile.mkstemp(dir=path.parent)  # only its owner can read it
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(fresh, path)
            path.with_name(f"{path.name}.pub").write_text(f"{_line_of(key.public_key())}\n")
    finally:
        Path(fresh).unlink()


def _own_line() -> str:
    """The public key of this machine as a line; "" if it has none yet, or one that cannot be used."""
    try:
        return _line_of(own_key().public_key()) if key_path().exists() else ""
    except WrongKey:
        return ""


def _trusted() -> Mapping[str, str]:
    """Public key -> its comment, of every line of `trusted_keys` that holds a key."""
    try:
        lines = key_path().with_name(TRUSTED_KEYS).read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    known: dict[str, str] = {}
    for line in lines:
        key, comment = line.strip().split(None, 2)[:2], line.strip().split(None, 2)[2:]
        with contextlib.suppress(ValueError, UnsupportedAlgorithm):  # a remark, or a key of another kind
            known[_line_of(_public(" ".join(key)))] = "".join(comment)
    return known


def _public(line: str) -> Ed25519PublicKey:
    """Raises ValueError or UnsupportedAlgorithm."""
    key = load_ssh_public_key(line.encode())
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError("no key of Ed25519")
    return key


def _line_of(key: Ed25519PublicKey) -> str:
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def _fingerprint(line: str) -> str:
    digest = hashlib.sha256(base64.b64decode(line.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")
