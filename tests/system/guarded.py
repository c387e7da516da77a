"""A broker that requires TLS and a password, and allows only what an access rule permits."""

from __future__ import annotations

import datetime
import ipaddress
import time
from pathlib import Path

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its types forget to export them
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from precede.local.embedded_broker import HOST, Broker, free_port

JOB, PASSWORD = "the-job", 'p"a\\ss, $w;ord='
CERTIFIED = "the-certified"
STRANGER = "stranger"
SPEAKER = "speaker"
MEMBER = "ann"

Rule = tuple[ResourceType, str, ResourcePatternType, tuple[AclOperation, ...]]

# Exactly what the job needs according to docs/how-to/secure.md.
RULES: list[Rule] = [
    (
        ResourceType.TOPIC,
        "*",
        ResourcePatternType.LITERAL,
        (
            AclOperation.READ,
            AclOperation.WRITE,
            AclOperation.CREATE,
            AclOperation.DESCRIBE,
            AclOperation.DESCRIBE_CONFIGS,
        ),
    ),
    (
        ResourceType.TRANSACTIONAL_ID,
        "precede.",
        ResourcePatternType.PREFIXED,
        (AclOperation.WRITE, AclOperation.DESCRIBE),
    ),
    (ResourceType.GROUP, "precede", ResourcePatternType.PREFIXED, (AclOperation.READ,)),
]


def on_topic(name: str, *operations: AclOperation) -> Rule:
    """The permissions for one topic."""
    return ResourceType.TOPIC, name, ResourcePatternType.LITERAL, operations


DESCRIBE = AclOperation.DESCRIBE
READ = AclOperation.READ, DESCRIBE
WRITE = AclOperation.WRITE
SENDER = WRITE, *READ, AclOperation.DESCRIBE_CONFIGS
CONSUMER_GROUPS: Rule = (ResourceType.GROUP, "precede", ResourcePatternType.PREFIXED, (AclOperation.READ,))
SENDER_AND_READER = [on_topic("precede.raw", *SENDER), on_topic("precede.ordered", *READ), CONSUMER_GROUPS]


class Guarded:
    """The broker; `broker.bootstrap` is an open listener for the tests' preparations.

    `bootstrap` requires a password, `certified` a certificate.
    """

    def __init__(self, folder: Path) -> None:
        port, certified, inside, controller = free_port(), free_port(), free_port(), free_port()
        self.bootstrap, self.certified = f"{HOST}:{port}", f"{HOST}:{certified}"
        self.ca_file = folder / "ca.pem"
        self.other_ca_file = folder / "other-ca.pem"
        self.password_file = folder / "password"
        self.password_file.write_text(PASSWORD + "\n")
        self.certificate_file, self.key_file = folder / "client.pem", folder / "client.key"
        server = write_certificates(folder, self.ca_file)
        write_certificates(folder / "other", self.other_ca_file)
        self.broker = Broker(
            inside,
            properties={
                "listeners": (
                    f"PLAINTEXT://{HOST}:{inside},GUARDED://{HOST}:{port},CERTIFIED://{HOST}:{certified},"
                    f"CONTROLLER://{HOST}:{controller}"
                ),
                "controller.quorum.voters": f"1@{HOST}:{controller}",
                "advertised.listeners": (
                    f"PLAINTEXT://{HOST}:{inside},GUARDED://{HOST}:{port},CERTIFIED://{HOST}:{certified}"
                ),
                "listener.security.protocol.map": (
                    "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,GUARDED:SASL_SSL,CERTIFIED:SSL"
                ),
                "listener.name.certified.ssl.client.auth": "required",
                "listener.name.certified.ssl.truststore.type": "PEM",
                "listener.name.certified.ssl.truststore.location": str(self.ca_file),
                "inter.broker.listener.name": "PLAINTEXT",
                "sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN",
                "listener.name.guarded.scram-sha-512.sasl.jaas.config": (
                    "org.apache.kafka.common.security.scram.ScramLoginModule required;"
                ),
                "listener.name.guarded.plain.sasl.jaas.config": (
                    'org.apache.kafka.common.security.plain.PlainLoginModule required user_plain="plain-password";'
                ),
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(server),
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": "User:ANONYMOUS",
            },
        )

    def set_the_stage(self) -> None:
        """The users: one may do what the job needs, the others may log in but see no topic."""
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        users: list[UserScramCredentialAlteration] = [
            UserScramCredentialUpsertion(name, scram, PASSWORD.encode()) for name in (JOB, STRANGER, MEMBER, SPEAKER)
        ]
        for future in admin.alter_user_scram_credentials(users).values():
            future.result(10)
        for user in (JOB, "plain", f"CN={CERTIFIED}"):
            self.allow(user, *RULES)

    def allow(self, user: str, *rules: Rule) -> None:
        """Grant the user these permissions."""
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        allowed = [
            AclBinding(kind, name, pattern, f"User:{user}", "*", operation, AclPermissionType.ALLOW)
            for kind, name, pattern, operations in rules
            for operation in operations
        ]
        for done in admin.create_acls(allowed).values():
            done.result(10)
        every = AclBindingFilter(
            ResourceType.ANY,
            None,  # type: ignore[arg-type]  # any; its types do not know
            ResourcePatternType.ANY,
            f"User:{user}",
            None,  # type: ignore[arg-type]
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        deadline = time.monotonic() + 10
        while not set(allowed) <= set(admin.describe_acls(every).result(10)):  # they take effect a moment later
            assert time.monotonic() < deadline
            time.sleep(0.05)


def write_certificates(folder: Path, ca_file: Path) -> Path:
    """Our own certificate authority, and its certificates for this machine's broker and for one client."""
    folder.mkdir(parents=True, exist_ok=True)
    ca_key = generate_private_key(SECP256R1())
    ca_file.write_bytes(certificate("precede test CA", ca_key, "precede test CA", ca_key, is_ca=True))
    for name, file in (("broker", "broker.pem"), (CERTIFIED, "client.pem")):
        key = generate_private_key(SECP256R1())
        own = certificate(name, key, "precede test CA", ca_key, is_ca=False)
        secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (folder / file).write_bytes(own + secret if name == "broker" else own)
        (folder / file).with_suffix(".key").write_bytes(secret)
    return folder / "broker.pem"


def certificate(
    name: str, key: EllipticCurvePrivateKey, issuer: str, issuer_key: EllipticCurvePrivateKey, *, is_ca: bool
) -> bytes:
    """A certificate for one day, for this machine's own address."""
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))]), critical=False)
    )
    return builder.sign(issuer_key, SHA256()).public_bytes(Encoding.PEM)
