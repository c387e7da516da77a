"""A realm of the test's own: a key distribution centre of MIT Kerberos, and a broker that asks for its tickets."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from precede.local.embedded_broker import HOST, Broker, free_port

REALM = "PRECEDE.TEST"
JOB = f"the-job@{REALM}"
SERVICE = "kafka"
NAME = "localhost"
"""The name under which the broker is asked for: tickets are for names."""
TOOLS = ("krb5kdc", "kadmin.local", "kdb5_util")
LOGIN = "com.sun.security.auth.module.Krb5LoginModule"

CONFIG = """\
[libdefaults]
 default_realm = {realm}
 dns_lookup_kdc = false
 dns_lookup_realm = false
 dns_canonicalize_hostname = false
 rdns = false
 udp_preference_limit = 1
[realms]
 {realm} = {{
  kdc = {host}:{port}
 }}
[domain_realm]
 localhost = {realm}
"""

CENTRE = """\
[kdcdefaults]
 kdc_listen = {host}:{port}
 kdc_tcp_listen = {host}:{port}
[realms]
 {realm} = {{
  database_name = {folder}/principal
  key_stash_file = {folder}/stash
  acl_file = {folder}/kadm5.acl
  max_life = 1h
 }}
"""


def tool(name: str) -> str | None:
    """Where Debian puts it is not on everyone's PATH."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def missing() -> str | None:
    """Why there can be no realm here; None where there can."""
    absent = [name for name in TOOLS if tool(name) is None]
    return f"{absent[0]} is not installed: apt install krb5-kdc krb5-admin-server" if absent else None


class Realm:
    """The centre with two principals, the broker and the job, each with a keytab."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.config = folder / "krb5.conf"
        self.config.write_text(CONFIG.format(realm=REALM, host=HOST, port=self.port))
        (folder / "kdc.conf").write_text(CENTRE.format(realm=REALM, host=HOST, port=self.port, folder=folder))
        self.variables = os.environ | {
            "KRB5_CONFIG": str(self.config),
            "KRB5_KDC_PROFILE": str(folder / "kdc.conf"),
        }
        self.broker_keytab, self.job_keytab = folder / "broker.keytab", folder / "job.keytab"
        port, inside, controller = free_port(), free_port(), free_port()
        self.bootstrap = f"{NAME}:{port}"
        own = "listener.name.tickets.gssapi"
        service = f"{SERVICE}/{NAME}@{REALM}"
        self.broker = Broker(
            inside,
            properties={
                "listeners": f"PLAINTEXT://{HOST}:{inside},TICKETS://{HOST}:{port},CONTROLLER://{HOST}:{controller}",
                "controller.quorum.voters": f"1@{HOST}:{controller}",
                "advertised.listeners": f"PLAINTEXT://{HOST}:{inside},TICKETS://{NAME}:{port}",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,TICKETS:SASL_PLAINTEXT",
                "inter.broker.listener.name": "PLAINTEXT",
                "sasl.enabled.mechanisms": "GSSAPI",
                "sasl.kerberos.service.name": SERVICE,
                f"{own}.sasl.jaas.config": (
                    f'{LOGIN} required useKeyTab=true storeKey=true keyTab="{self.broker_keytab}" '
                    f'principal="{service}";'
                ),
            },
        )
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "of the test")
        for principal, keytab in ((service, self.broker_keytab), (JOB, self.job_keytab)):
            self._run("kadmin.local", "-r", REALM, "-q", f"addprinc -randkey {principal}")
            self._run("kadmin.local", "-r", REALM, "-q", f"ktadd -k {keytab} -norandkey {principal}")

    def _run(self, name: str, *arguments: str) -> None:
        command = [tool(name) or name, *arguments]
        done = subprocess.run(command, env=self.variables, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    @property
    def java_option(self) -> str:
        return f"-Djava.security.krb5.conf={self.config}"

    @contextmanager
    def running(self) -> Iterator[Realm]:
        """Run the centre, then the broker."""
        centre = subprocess.Popen([tool("krb5kdc") or "", "-n", "-r", REALM], env=self.variables)
        before = os.environ.get("JAVA_TOOL_OPTIONS", "")
        os.environ["JAVA_TOOL_OPTIONS"] = f"{before} {self.java_option}".strip()
        try:
            self.broker.start()
            os.environ["JAVA_TOOL_OPTIONS"] = before
            yield self
        finally:
            os.environ["JAVA_TOOL_OPTIONS"] = before
            self.broker.stop()
            centre.terminate()
            centre.wait(10)
