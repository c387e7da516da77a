"""An application that follows one group, handles each message exactly once, and goes on where it stopped.

    precede broker --port 9092 --data kafka/      in one terminal
    precede run                                   in another
    python examples/follow_group.py travel        here; stop it with Ctrl-C, start it again

The result of a message and the token are written in one transaction of the application's own database, here SQLite.
If the program is killed at any moment, both are there or neither is, so no message is lost and none is handled twice.
The result of this application is how much each sender has said.
"""

import sqlite3
import sys
from contextlib import closing

import precede

TABLES = """
CREATE TABLE IF NOT EXISTS said (sender TEXT PRIMARY KEY, messages INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS place (one INTEGER PRIMARY KEY CHECK (one = 1), token TEXT NOT NULL);
"""
COUNT = "INSERT INTO said VALUES (?, 1) ON CONFLICT (sender) DO UPDATE SET messages = messages + 1"
KEEP = "INSERT INTO place VALUES (1, ?) ON CONFLICT (one) DO UPDATE SET token = excluded.token"

group = sys.argv[1] if len(sys.argv) > 1 else "travel"
bootstrap = sys.argv[2] if len(sys.argv) > 2 else None  # without it, PRECEDE_BOOTSTRAP or localhost:9092
patience_s = float(sys.argv[3]) if len(sys.argv) > 3 else None  # how long to wait for more before it ends

with closing(sqlite3.connect(f"{group}.db")) as database:
    database.executescript(TABLES)
    found = database.execute("SELECT token FROM place").fetchone()
    token = None if found is None else found[0]
    with precede.follow(group, bootstrap=bootstrap, token=token, patience_s=patience_s) as messages:
        try:
            for message in messages:
                with database:  # one transaction: the result, and how far it has come
                    database.execute(COUNT, [message.sender])
                    database.execute(KEEP, [messages.token])
                print(f"{message.position}  {message.sender}: {message.data}", flush=True)
        except KeyboardInterrupt:
            pass
        except precede.Hole as hole:
            sys.exit(f"Stopped: {hole}")
    for sender, count in database.execute("SELECT sender, messages FROM said ORDER BY sender"):
        print(f"{sender} has said {count}", file=sys.stderr)
