"""An application that follows one group and resumes where it stopped, with kafka-python as its client.

    precede broker --port 9092 --data kafka/      in one terminal
    precede run                                   in another
    python examples/follow_group.py travel        here; stop it with Ctrl-C, start it again

Save the result of a message and the token in one step, and each message is handled exactly once. Here the result is a
printed line, and the token goes into a file.
"""

import sys
from pathlib import Path

import precede

group = sys.argv[1] if len(sys.argv) > 1 else "travel"
bootstrap = sys.argv[2] if len(sys.argv) > 2 else "localhost:9092"
patience_s = float(sys.argv[3]) if len(sys.argv) > 3 else None  # how long to wait for more before it ends
token_file = Path(f"{group}.token")
token = token_file.read_text() if token_file.exists() else None

with precede.follow(group, bootstrap=bootstrap, token=token, patience_s=patience_s, client="kafka-python") as messages:
    try:
        for message in messages:
            print(f"{message.position}  {message.sender}: {message.data}", flush=True)
            token_file.write_text(messages.token)
    except KeyboardInterrupt:
        pass
    except precede.Hole as hole:
        sys.exit(f"Stopped: {hole}")
