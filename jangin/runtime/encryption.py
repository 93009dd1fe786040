"""Encrypted models: a whole `.jgn` file, encrypted by AES-256 in Galois/counter mode (NIST SP 800-38D).

The file is little-endian. It has 8 bytes of magic, u32 version, a nonce of 12 random bytes, a tag of 16
bytes, and the encrypted `.jgn` file. The tag authenticates the whole file. A key is a file of 64 hexadecimal
digits, as `openssl rand -hex 32` writes them. The package `cryptography` (the extra `crypto`) does the
computation.
"""

from __future__ import annotations

import io
import os
import re
import struct
from collections.abc import Callable
from typing import Any, BinaryIO

from jangin.files import write_whole
from jangin.mapped import InMemory
from jangin.runtime.artifact import ENCRYPTED_MAGIC, ArtifactError, damaged

VERSION = 1
"""The version of encrypted files. It changes with the cipher or the prefix, and the contents have their own
version."""
PREFIX = struct.Struct("<8sI12s16s")
AUTHENTICATED = struct.Struct("<8sI")
"""The part of the prefix that the tag authenticates too."""
BLOCK = 16 << 20
"""Bytes that are read and decrypted at once. A block beside the decrypted file is all the memory that
decryption takes."""


def save_encrypted(
    path: str | os.PathLike[str], key: str | os.PathLike[str], write: Callable[[BinaryIO], object]
) -> bytes:
    """Encrypt the `.jgn` file that `write` writes, and save it. The plain file is never on the disk.

    Return the plain file's first 64 bytes, which `runtime.signing.sign` needs. Raises ValueError for an
    invalid key."""
    secret = _secret(key)
    plain = io.BytesIO()
    write(plain)
    nonce, head = os.urandom(12), AUTHENTICATED.pack(ENCRYPTED_MAGIC, VERSION)
    cipher = _cipher(secret, nonce).encryptor()
    cipher.authenticate_additional_data(head)

    def encrypted(file: BinaryIO) -> None:
        file.seek(PREFIX.size)
        data = plain.getbuffer()
        for at in range(0, len(data), BLOCK):
            file.write(cipher.update(data[at : at + BLOCK]))
        cipher.finalize()
        file.seek(0)
        file.write(PREFIX.pack(ENCRYPTED_MAGIC, VERSION, nonce, cipher.tag))

    write_whole(path, encrypted)
    return bytes(plain.getbuffer()[:64])


def decrypted(path: str | os.PathLike[str], file: BinaryIO, key: str | os.PathLike[str]) -> InMemory:
    """Decrypt a `.jgn` file to memory, and return the memory.

    Raises ArtifactError if the file isn't encrypted, was changed or cut short, or was encrypted by another
    key. Raises ValueError for an invalid key."""
    secret = _secret(key)
    prefix = file.read(PREFIX.size)
    if prefix[: len(ENCRYPTED_MAGIC)] != ENCRYPTED_MAGIC:
        raise ArtifactError(f"{path} is not encrypted: load it without key=")
    if len(prefix) < PREFIX.size:
        raise damaged(path, "it ends within its first bytes")
    _, version, nonce, tag = PREFIX.unpack(prefix)
    if version != VERSION:
        raise ArtifactError(
            f"{path} is encrypted in format {version}, and this program reads {VERSION}: encrypt it again"
        )
    from cryptography.exceptions import InvalidTag

    cipher = _cipher(secret, nonce, tag).decryptor()
    cipher.authenticate_additional_data(prefix[: AUTHENTICATED.size])
    size = os.fstat(file.fileno()).st_size - PREFIX.size
    plain, at = InMemory(size), 0
    with memoryview(plain) as view:
        while at < size and (block := file.read(min(BLOCK, size - at))):
            view[at : at + len(block)] = cipher.update(block)
            at += len(block)
    try:
        if at != size:
            raise InvalidTag
        cipher.finalize()
    except InvalidTag:
        raise ArtifactError(
            f"{path}: can't be decrypted by {key}: that isn't its key, or it is cut short or damaged"
        ) from None
    return plain


def _cipher(secret: bytes, nonce: bytes, tag: bytes | None = None) -> Any:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    return Cipher(algorithms.AES(secret), modes.GCM(nonce, tag))


def _secret(path: str | os.PathLike[str]) -> bytes:
    """Read the key from a file, and return its 32 bytes. Raises ValueError if it isn't 64 hexadecimal digits,
    and RuntimeError without the package cryptography."""
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise RuntimeError(
            "encryption needs the package cryptography: pip install 'jangin[crypto]'"
        ) from None
    with open(path, "rb") as file:
        digits = file.read(128).strip()
    if not re.fullmatch(rb"[0-9a-fA-F]{64}", digits):
        raise ValueError(f"{path} is no key of 64 hexadecimal digits (openssl rand -hex 32 makes one)")
    return bytes.fromhex(digits.decode())
