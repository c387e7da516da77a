"""Keys in files: made once, readable only by their owner, and never shown. The format is the one of `openssl`."""

import os
import stat
from base64 import b64encode
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from precede.ingest.extras import need
from precede.udfs.errors import Refused

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

OWNER_ONLY = 0o600


def make_key(path: Path) -> "Ed25519PrivateKey":
    """Make a key pair; the private key goes into a new file, because an overwritten key is lost for ever."""
    need("keys", "A key")
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = Ed25519PrivateKey.generate()
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Created with its mode, or others could read it for a moment.
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_ONLY)
        try:
            with os.fdopen(handle, "wb") as file:
                os.fchmod(handle, OWNER_ONLY)  # whatever the umask took away
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            with suppress(OSError):
                path.unlink()
            raise
    except FileExistsError:
        raise Refused(
            f"{path} is there already and was not changed: name another file, or move it away; "
            "--show prints its public key."
        ) from None
    except OSError as error:
        raise Refused(f"The key file {path} cannot be written: {error.strerror}.") from error
    return key


def load_key(path: str | Path) -> "Ed25519PrivateKey":
    """The private key in a file; errors never show what the file contains."""
    need("keys", "A key")
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    path = Path(path).expanduser()
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            text = file.read(64 * 1024)
    except OSError as error:
        raise Refused(f"The key file {path} cannot be read: {error.strerror}.") from error
    if status.st_uid == os.getuid() and stat.S_IMODE(status.st_mode) & 0o077:
        raise Refused(f"The key file {path} can be read by other users: chmod 600 {path}, or make a new key.")
    try:
        key = load_pem_private_key(text, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise Refused(f"The file {path} contains no usable private key; `precede key` makes one.") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise Refused(
            f"The file {path} contains a private key that is not of the kind Ed25519; `precede key` makes one."
        )
    return key


def key_in(file: str | Path | None) -> "Ed25519PrivateKey | None":
    """The private key in a file, if one is named."""
    return None if file is None else load_key(file)


def public_text(key: "Ed25519PrivateKey") -> str:
    """The public key, as `create` and `join` contain it."""
    return b64encode(key.public_key().public_bytes_raw()).decode()
