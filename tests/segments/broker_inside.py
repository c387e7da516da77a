"""A broker at an address of a network that a test made: `python -m tests.segments.broker_inside ADDRESS`."""

import sys
import threading

from precede.local.embedded_broker import Broker
from tests.segments.network import end_with_parent

PORT, CONTROLLER = 19_092, 19_093


def main() -> None:
    end_with_parent()
    address = sys.argv[1]
    properties = {
        "listeners": f"PLAINTEXT://0.0.0.0:{PORT},CONTROLLER://127.0.0.1:{CONTROLLER}",
        "advertised.listeners": f"PLAINTEXT://{address}:{PORT}",
        "controller.quorum.voters": f"1@127.0.0.1:{CONTROLLER}",
    }
    with Broker(PORT, properties=properties):
        print(f"{address}:{PORT}", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
