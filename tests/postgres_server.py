"""A PostgreSQL server of the tests' own, on a unix socket in a temporary folder, from Debian's `postgresql` package."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine

from audit.runs.evidence import in_memory


class NotInstalled(Exception):
    """There is no server to start; the message says what is missing."""


def _server_programs() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)
    if not found:
        raise NotInstalled("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    return found[0].parent


def _server_account() -> dict[str, Any]:
    """A PostgreSQL server refuses to run as root; Debian's package makes an account for it."""
    if os.getuid() != 0:
        return {}
    try:
        account = pwd.getpwnam("postgres")
    except KeyError:
        raise NotInstalled("running as root, and there is no account `postgres` to run the server as") from None
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


@contextmanager
def postgres_server() -> Iterator[str]:
    """The URL of a server that is gone afterwards."""
    programs, account = _server_programs(), _server_account()
    folder = Path(tempfile.mkdtemp(prefix="pf", dir=in_memory()))
    if account:
        os.chown(folder, account["user"], account["group"])
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder}
    initdb = [programs / "initdb", "-D", folder / "data", "-A", "trust", "-U", "privfair", "--no-sync"]
    subprocess.run(initdb, check=True, **quiet, **account)
    options = ["-k", folder, "-c", "listen_addresses=", "-c", "synchronous_commit=off"]
    process = subprocess.Popen([programs / "postgres", "-D", folder / "data", *options], **quiet, **account)
    try:
        for _ in range(300):
            ready = subprocess.run([programs / "pg_isready", "-h", folder, "-q"], check=False, **quiet)
            if ready.returncode == 0:
                break
            time.sleep(0.1)
        yield f"postgresql+psycopg://privfair@/postgres?host={folder}"
    finally:
        process.send_signal(signal.SIGQUIT)  # PostgreSQL's immediate shutdown: nothing here is to be kept
        process.wait(60)
        shutil.rmtree(folder)


def new_schema(url: str, name: str) -> str:
    """The URL of a new, empty schema on that server: the way several silos share one database."""
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE SCHEMA {name}")
    engine.dispose()
    return f"{url}&options=-csearch_path%3D{name}"
