"""Signatures of saved models (Ed25519, RFC 8032), each in a file beside the model's.

The signed message is the digest at the file's start. It covers everything in the file: plans, code, and the
digests of constants and of parts. Keys are PEM files, as `openssl genpkey -algorithm ed25519` and `openssl
pkey -pubout` write them. The package `cryptography` (the extra `crypto`) does the computation.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from jangin.files import write_whole
from jangin.runtime.artifact import PREFIX, ArtifactError

SUFFIX = ".sig"
"""The suffix that follows the model file's name in the name of the signature's file."""
CONTEXT = b"Jangin model, signature 1\0"
"""Bytes that are signed before a file's kind and digest, so that a signature made for another purpose isn't
valid for a model."""


def sign(path: str | os.PathLike[str], key: str | os.PathLike[str], prefix: bytes | None = None) -> Path:
    """Sign a saved model with the private key in a PEM file, and return the path of the signature's file.

    `prefix` is the beginning of the plain model, if the file at the path is encrypted. Raises
    FileNotFoundError, or ValueError for a key that can't sign."""
    private = _key(key, "private")
    if prefix is None:
        with open(path, "rb") as file:
            prefix = file.read(PREFIX.size)
    signature = private.sign(_message(prefix[: PREFIX.size]))
    beside = Path(f"{os.fspath(path)}{SUFFIX}")
    write_whole(beside, lambda out: out.write(signature))
    return beside


def check_signature(path: str | os.PathLike[str], prefix: bytes, trust: str | os.PathLike[str]) -> None:
    """Check the signature of a model, whose file begins with `prefix`, with the public key in the PEM file
    `trust`.

    Raises ArtifactError for a model without a valid signature, and the errors of `sign`."""
    public = _key(trust, "public")
    try:
        signature = Path(f"{os.fspath(path)}{SUFFIX}").read_bytes()
    except FileNotFoundError:
        raise ArtifactError(f"{path} isn't signed: there is no {os.fspath(path)}{SUFFIX}") from None
    if not _has_signed(public, _message(prefix), signature):
        raise ArtifactError(f"{path} isn't what the owner of {trust} signed")


def sign_bytes(message: bytes, key: str | os.PathLike[str]) -> bytes:
    """Return the signature of a message by the private key in a PEM file. Raises the errors of `sign`."""
    signature: bytes = _key(key, "private").sign(message)
    return signature


def is_signed(message: bytes, signature: bytes, trust: str | os.PathLike[str]) -> bool:
    """Return whether the owner of the public key in a PEM file signed a message. Raises the errors of
    `sign`."""
    return _has_signed(_key(trust, "public"), message, signature)


def _has_signed(public: Any, message: bytes, signature: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        public.verify(signature, message)
    except InvalidSignature:
        return False
    return True


def _message(prefix: bytes) -> bytes:
    if len(prefix) < PREFIX.size:
        return CONTEXT
    magic, _, _, digest = PREFIX.unpack(prefix)
    return CONTEXT + bytes(magic) + bytes(digest)


def _key(path: str | os.PathLike[str], kind: str) -> Any:
    """Read the Ed25519 key of this kind ("private" or "public") from a PEM file. Raises ValueError for any
    other file."""
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise RuntimeError("signatures need the package cryptography: pip install 'jangin[crypto]'") from None
    text = Path(path).read_bytes()
    wanted = ed25519.Ed25519PrivateKey if kind == "private" else ed25519.Ed25519PublicKey
    try:
        if kind == "private":
            key: object = serialization.load_pem_private_key(text, None)
        else:
            key = serialization.load_pem_public_key(text)
    except TypeError:
        raise ValueError(f"the key {path} has a password: give it without (openssl pkey -in ...)") from None
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError(f"{path} is no {kind} key in PEM form") from None
    if not isinstance(key, wanted):
        raise ValueError(f"{path} is no Ed25519 key (openssl genpkey -algorithm ed25519 makes one)")
    return key
