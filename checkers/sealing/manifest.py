"""The signed manifest of a run: the name, the size and the hash of every primary file.

Primary files were recorded during the run: the history, test.json and the journal, traces and logs of nodes, copies of
their data directories, and the files of a user's own system or workload, which decide how the run is judged.
The harness writes the manifest when everything is collected, before anything is judged.  Later only sealing changes the
manifest: it replaces the entry of the stream by one of `history.parquet`.  Sealing does so only if the stream agrees
with its entry.  So no later step can accept a file that was changed in between.

Derived files are written while a run is judged.  `buckets/` and `tables/` are written again each time.  Results and
reports are derived too, and no verdict depends on them.

The manifest is signed.  Only the owner of a key can sign another manifest with it.  If this machine signed the
manifest, sealing signs the changed manifest again.  If another key signed the manifest, its entry of the stream stays,
and `history.parquet` counts as derived from the stream.

*Signature.*  It is an Ed25519 signature (RFC 8032) of the manifest, which shows who made a run.

The harness signs when a run ends.  A manifest lists every primary file, so the signature shows: an owner of this key
recorded exactly these files.  It does not show that their content is true.

Every machine makes its own key at first use.  The key is in a folder next to the cache that only its user can open:

    ed25519         the private key, in OpenSSH's format; KRUCIBLE_SIGNING_KEY names another file, e.g. for a CI
    ed25519.pub     the public key as one line, to give to others
    trusted_keys    public keys that this user trusts, one a line as in OpenSSH's authorized_keys; may be missing

The last two are always in the folder of the private key.
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
"""Folders with the code of the user's own system and workload, which is kept with the run."""
_MADE_BY_PYTHON = "__pycache__"
"""Folder that is not part of the run: judging imports the kept code, and Python stores compiled files here."""
_PIECE_BYTES = 1 << 22


def primary_files(root: Path) -> Iterator[Path]:
    """Yield every primary file that exists, in order of name.  Symbolic links do not count."""
    found = [root / name for name in _PRIMARY_FILES]
    for folder in _PRIMARY_FOLDERS:
        found += (root / folder).rglob("*")
    for folder in CODE_FOLDERS:
        found += (path for path in (root / folder).rglob("*") if _MADE_BY_PYTHON not in path.relative_to(root).parts)
    yield from sorted(path for path in found if path.is_file() and not path.is_symlink())


def hash_of(path: Path) -> str:
    """Return the BLAKE2b-256 hash of a file, in hexadecimal.  Takes about 1 s per gigabyte."""
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

    Without a usable key the manifest is not signed.  (A run with an unusable key is refused before it begins.)"""
    files = entries_of(root)
    try:
        _write(root, files, signed=True)
    except WrongKey:
        _write(root, files, signed=False)


def entries_of(root: Path) -> dict[str, dict[str, Any]]:
    """Return {path: entry} of every primary file that exists now."""
    return {str(path.relative_to(root)): entry_of(path) for path in primary_files(root)}


def bound_files(root: Path) -> dict[str, dict[str, Any]] | None:
    """Return the entries of the manifest: path -> {"size_bytes", "blake2b"}; None if there is no manifest.

    Raises BrokenFile.
    """
    path = root / MANIFEST
    if not path.exists():
        return None
    files = read_object(path).get("files")
    if not isinstance(files, dict) or not all(isinstance(entry, dict) for entry in files.values()):
        raise BrokenFile(f"{MANIFEST} does not name the files of the run")
    return files


def is_bound(root: Path, name: str) -> bool:
    """Return True if a file exists and agrees with its entry in the manifest.  Raises BrokenFile."""
    entry = (bound_files(root) or {}).get(name)
    return entry is not None and (root / name).is_file() and not _difference(root / name, entry)


def signer(root: Path) -> Signer:
    """Return the signer of the manifest.  Raises BrokenFile."""
    return signer_of(_signed_content(bound_files(root) or {}), read_object(root / MANIFEST).get("signed"))


def sealed(root: Path) -> bool:
    """Replace the stream's entry in the manifest by one of `history.parquet`.  The stream may then be deleted.

    Returns False, and changes nothing, if another machine signed the manifest."""
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
    """Return one clause for each file that differs from the manifest; empty if none does."""
    try:
        if bound_files(root) is None:
            return [f"there is no {MANIFEST}: the harness did not reach the end of the run, or the file was removed"]
        changed = [f"{MANIFEST} is {signer(root).words}"] if signer(root).by is SignedBy.CHANGED else []
        return changed + [f"{name} {what}" for name, what in broken_files(root).items()]
    except BrokenFile as problem:
        return [str(problem)]


def broken_files(root: Path, folder: str = "") -> dict[str, str]:
    """Return {path: difference} of every file that differs from the manifest.  A difference is e.g. "is missing".

    folder: compare only files below this folder of the run

    Returns an empty mapping if there is no manifest.  Raises BrokenFile.
    """
    files = bound_files(root)
    if files is None:
        return {}
    there = {str(path.relative_to(root)): path for path in primary_files(root)}
    if STREAM in files and SEALED not in files:
        there.pop(SEALED, None)  # derived from the stream, so it will be written again
    broken = dict.fromkeys(files.keys() - there.keys(), "is missing")
    broken |= dict.fromkeys(there.keys() - files.keys(), "was added after the run")
    for name in files.keys() & there.keys():
        if name.startswith(folder) and (difference := _difference(there[name], files[name])):
            broken[name] = f"was changed after the run ({difference})"
    return {name: broken[name] for name in sorted(broken) if name.startswith(folder)}


def _difference(path: Path, entry: Mapping[str, Any]) -> str:
    """Return the difference between a file and its entry; "" if none.  Computes the hash only if the sizes agree."""
    size_bytes = path.stat().st_size
    if size_bytes != entry.get("size_bytes"):
        return f"{size_bytes} bytes, not {entry.get('size_bytes')}"
    return "" if hash_of(path) == entry.get("blake2b") else "its hash differs"


def _signed_content(files: Mapping[str, Any]) -> bytes:
    """Return the bytes that are signed: the entries, in a form that does not depend on spaces and order."""
    return json.dumps(files, sort_keys=True, separators=(",", ":")).encode()


def _write(root: Path, files: Mapping[str, Any], signed: bool) -> None:
    content: dict[str, Any] = {"files": dict(sorted(files.items()))}
    if signed:
        content["signed"] = sign(_signed_content(files))
    write_json_whole(root / MANIFEST, content)


KEY_VARIABLE = "KRUCIBLE_SIGNING_KEY"
TRUSTED_KEYS = "trusted_keys"
_SUBJECT = b"krucible manifest\n"
"""Prefix of the signed bytes, so that a signature made for another purpose is not valid here."""


class WrongKey(ValueError):
    """The signing key cannot be used.  The message names the file and the reason, and says what to do."""


class SignedBy(StrEnum):
    """The owner of the key that signed a run, as far as the signature shows."""

    THIS_MACHINE = "this machine"
    KNOWN_KEY = "a known key"
    UNKNOWN_KEY = "an unknown key"
    NOBODY = "nobody"
    CHANGED = "changed"
    """There is a signature, but it does not match the content."""


@dataclass(frozen=True, slots=True)
class Signer:
    """The signer of a manifest.

    key: fingerprint of the public key, as `ssh-keygen -l` shows it; "" without a signature
    name: comment of a known key in `trusted_keys`"""

    by: SignedBy
    key: str = ""
    name: str = ""

    @property
    def trusted(self) -> bool:
        """Return True if code that this signer recorded may be executed."""
        return self.by in (SignedBy.THIS_MACHINE, SignedBy.KNOWN_KEY)

    @property
    def words(self) -> str:
        """A clause for a reader, such as "signed by this machine (SHA256:…)"."""
        if self.by is SignedBy.NOBODY:
            return "unsigned: nothing shows who made this run, or whether the files and the manifest were changed later"
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
    """Return the signer of the content.

    signed: the result of `sign`, read from a file that anybody may have written; None: there is no signature
    """
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
    return "remove the file, and Krucible makes a new key"


def _make_once(path: Path) -> None:
    """Make the key if there is none.  If two processes do so at once, one key is kept.  Raises OSError."""
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
    """Return the public key of this machine as a line; "" if there is no key yet or the key cannot be used."""
    try:
        return _line_of(own_key().public_key()) if key_path().exists() else ""
    except WrongKey:
        return ""


def _trusted() -> Mapping[str, str]:
    """Return {public key: comment} of every line of `trusted_keys` that contains a key."""
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
    """Parse a public key.  Raises ValueError or UnsupportedAlgorithm."""
    key = forms.load_ssh_public_key(line.encode())
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError("not an Ed25519 key")
    return key


def _line_of(key: Ed25519PublicKey) -> str:
    return key.public_bytes(Encoding.OpenSSH, forms.PublicFormat.OpenSSH).decode()


def _fingerprint(line: str) -> str:
    digest = hashlib.sha256(base64.b64decode(line.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")
