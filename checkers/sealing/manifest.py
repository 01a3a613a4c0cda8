"""The signed manifest of a run: the name, the size and the hash of every primary file.

Primary files were recorded during the run: the history, test.json and the journal, traces and logs of nodes, copies of
their data directories, and the files of a system or workload of the user's own, which decide how the run is judged.
The harness writes the manifest when everything is collected, and before anything is judged.  Later only sealing changes
it: the manifest then names `history.parquet` in place of the stream.  Sealing does so only if the stream is the one
that the manifest names.  So no later step can accept a file that was changed in between.

Derived files are made while a run is judged.  `buckets/` and `tables/` are made again each time.  Results and reports
are derived too, and no verdict rests on them.

The manifest is signed.  Only who holds the key can write another one that this key signs.  Sealing
signs again what this machine had signed.  If another key signed, the manifest goes on naming the stream, and
`history.parquet` is derived from it.

*Signature.*  It shows who made a run: an Ed25519 signature (RFC 8032) over its manifest.

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
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization as forms
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding

from checkers.base.cache_folder import cache_folder
from checkers.record.files import BrokenFile, write_json_whole
from checkers.record.run_record import JOURNAL, TEST, read_object

MANIFEST = "manifest.json"
STREAM, SEALED = "history.arrows", "history.parquet"

_PRIMARY_FILES = (TEST, JOURNAL, "schedule.json", STREAM, SEALED)
_PRIMARY_FOLDERS = ("trace", "nodes")
CODE_FOLDERS = ("subject", "workload")
"""Files of the user's own, kept with the run."""
_MADE_BY_PYTHON = "__pycache__"
"""Judging imports the kept files, and Python leaves its own copies beside them."""
_PIECE_BYTES = 1 << 22


def primary_files(root: Path) -> Iterator[Path]:
    """Every primary file that exists, in order of name.  Symbolic links do not count."""
    found = [root / name for name in _PRIMARY_FILES]
    for folder in _PRIMARY_FOLDERS:
        found += (root / folder).rglob("*")
    for folder in CODE_FOLDERS:
        found += (path for path in (root / folder).rglob("*") if _MADE_BY_PYTHON not in path.relative_to(root).parts)
    yield from sorted(path for path in found if path.is_file() and not path.is_symlink())


def hash_of(path: Path) -> str:
    """BLAKE2b-256 of a file, in hexadecimal.  Takes about 1 s per gigabyte."""
    digest = hashlib.blake2b(digest_size=32)
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def entry_of(path: Path) -> dict[str, Any]:
    """Return the manifest's entry for a file: its size and hash."""
    return {"size_bytes": path.stat().st_size, "blake2b": hash_of(path)}


def write_manifest(root: Path) -> None:
    """Write a manifest of all primary files that exist now, and sign it.  The harness calls this when a run is over.

    Without a usable key it is unsigned: runs with a wrong key are refused before they begin."""
    files = entries_of(root)
    try:
        _write(root, files, signed=True)
    except WrongKey:
        _write(root, files, signed=False)


def entries_of(root: Path) -> dict[str, dict[str, Any]]:
    """Path -> entry of every primary file that exists now."""
    return {str(path.relative_to(root)): entry_of(path) for path in primary_files(root)}


def bound_files(root: Path) -> dict[str, dict[str, Any]] | None:
    """Return the entries of the manifest: path -> {"size_bytes", "blake2b"}; None without a manifest.  Raises
    BrokenFile.
    """
    path = root / MANIFEST
    if not path.exists():
        return None
    files = read_object(path).get("files")
    if not isinstance(files, dict) or not all(isinstance(entry, dict) for entry in files.values()):
        raise BrokenFile(f"{MANIFEST} does not name the files of the run")
    return files


def is_bound(root: Path, name: str) -> bool:
    """Return whether a file exists and agrees with its entry in the manifest.  Raises BrokenFile."""
    entry = (bound_files(root) or {}).get(name)
    return entry is not None and (root / name).is_file() and not _difference(root / name, entry)


def signer(root: Path) -> Signer:
    """Return the signer of the manifest.  Raises BrokenFile."""
    return signer_of(_signed_content(bound_files(root) or {}), read_object(root / MANIFEST).get("signed"))


def sealed(root: Path) -> bool:
    """Name `history.parquet` in the manifest in place of a stream, which is then not needed any more.

    Returns False, and changes nothing, if the manifest was signed and not by this machine."""
    files = bound_files(root)
    if files is None or STREAM not in files:
        return True
    by = signer(root).by
    if by not in (SignedBy.THIS_MACHINE, SignedBy.NOBODY):
        return False
    del files[STREAM]
    _write(root, files | {SEALED: entry_of(root / SEALED)}, signed=by is SignedBy.THIS_MACHINE)
    return True


def broken_bonds(root: Path) -> list[str]:
    """Files that differ from the manifest, one clause per file; empty if none does."""
    try:
        if bound_files(root) is None:
            return [f"there is no {MANIFEST}: the harness did not come to the end of the run, or the file was removed"]
        changed = [f"{MANIFEST} is {signer(root).words}"] if signer(root).by is SignedBy.CHANGED else []
        return changed + [f"{name} {what}" for name, what in broken_files(root).items()]
    except BrokenFile as problem:
        return [str(problem)]


def broken_files(root: Path, folder: str = "") -> dict[str, str]:
    """Path -> difference of every file that differs from the manifest, e.g. "is missing".

    folder: look only below this folder of the run.  Returns an empty mapping if there is no manifest.
    Raises BrokenFile.
    """
    files = bound_files(root)
    if files is None:
        return {}
    there = {str(path.relative_to(root)): path for path in primary_files(root)}
    if STREAM in files and SEALED not in files:
        there.pop(SEALED, None)  # it is derived from the stream, and will be created again
    broken = dict.fromkeys(files.keys() - there.keys(), "is missing")
    broken |= dict.fromkeys(there.keys() - files.keys(), "was added after the run")
    for name in files.keys() & there.keys():
        if name.startswith(folder) and (difference := _difference(there[name], files[name])):
            broken[name] = f"was changed after the run ({difference})"
    return {name: broken[name] for name in sorted(broken) if name.startswith(folder)}


def _difference(path: Path, entry: Mapping[str, Any]) -> str:
    """Return how a file differs from its entry; "" if it does not.  The hash is computed only if the sizes agree."""
    size_bytes = path.stat().st_size
    if size_bytes != entry.get("size_bytes"):
        return f"{size_bytes} bytes, not {entry.get('size_bytes')}"
    return "" if hash_of(path) == entry.get("blake2b") else "its hash differs"


def _signed_content(files: Mapping[str, Any]) -> bytes:
    """Return what is signed: the entries, in a form that does not depend on spaces and order."""
    return json.dumps(files, sort_keys=True, separators=(",", ":")).encode()


def _write(root: Path, files: Mapping[str, Any], signed: bool) -> None:
    content: dict[str, Any] = {"files": dict(sorted(files.items()))}
    if signed:
        content["signed"] = sign(_signed_content(files))
    write_json_whole(root / MANIFEST, content)


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
        if self.by is SignedBy.NOBODY:
            return "unsigned: nothing shows who made this run, or whether all of it was changed since"
        if self.by is SignedBy.CHANGED:
            return "signed, but its signature does not match: the manifest was changed after it was signed"
        return f"signed by {self.by}{f' of {self.name}' if self.name else ''} ({self.key})"

    def to_json(self) -> dict[str, str]:
        return {"by": str(self.by), "key": self.key, "words": self.words}


def sign(content: bytes) -> dict[str, str]:
    """Return the public key of this machine and its signature of the content, both as text.  Raises WrongKey."""
    key = own_key()
    signature = base64.b64encode(key.sign(_SUBJECT + content)).decode()
    return {"public_key": _line_of(key.public_key()), "signature": signature}


def signer_of(content: bytes, signed: object) -> Signer:
    """Return the signer of the content.  signed: as `sign` returned it, read from a file of anybody; None: nothing."""
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
    """Return the key of this machine, made at first use.  Raises WrongKey."""
    path = key_path()
    try:
        if KEY_VARIABLE not in os.environ:
            _make_once(path)
        key = forms.load_ssh_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as problem:
        why = problem.strerror if isinstance(problem, OSError) else str(problem)
        raise WrongKey(f"the signing key {path} cannot be used ({why}): {_remedy()}") from problem
    if not isinstance(key, Ed25519PrivateKey):
        raise WrongKey(f"the signing key {path} is not an Ed25519 key: {_remedy()}")
    return key


def key_path() -> Path:
    """Return the file of the private key."""
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
    descriptor, fresh = tempfile.mkstemp(dir=path.parent)  # only the owner can read it
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(key.private_bytes(Encoding.PEM, forms.PrivateFormat.OpenSSH, forms.NoEncryption()))
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(fresh, path)
            path.with_name(f"{path.name}.pub").write_text(f"{_line_of(key.public_key())}\n")
    finally:
        Path(fresh).unlink()


def _own_line() -> str:
    """Return the public key of this machine as a line; "" if it has none yet, or one that cannot be used."""
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
        with contextlib.suppress(ValueError, UnsupportedAlgorithm):  # a comment, or a key of another type
            known[_line_of(_public(" ".join(key)))] = "".join(comment)
    return known


def _public(line: str) -> Ed25519PublicKey:
    """Raises ValueError or UnsupportedAlgorithm."""
    key = forms.load_ssh_public_key(line.encode())
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError("no key of Ed25519")
    return key


def _line_of(key: Ed25519PublicKey) -> str:
    return key.public_bytes(Encoding.OpenSSH, forms.PublicFormat.OpenSSH).decode()


def _fingerprint(line: str) -> str:
    digest = hashlib.sha256(base64.b64decode(line.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")
