"""What the operator is told while batches are published: each sentence once, and that Kafka does not answer."""

from collections.abc import Callable

from confluent_kafka import KafkaError

from precede.ingest.kafka import clients
from precede.ingest.kafka.access import Address

SENTENCES_MAX = 100
"""How many of the kernel's sentences the job says: one is about one group, and there may be many groups."""
NO_MORE_SENTENCES = (
    "More groups lack the same; `precede held --gaps` shows their gaps, and the job does not report them one by one."
)


class Notices:
    """Collects notices in any thread; `announce` says those that are new."""

    def __init__(self, bootstrap: Address | str) -> None:
        self.is_kafka_away = False
        self._bootstrap = bootstrap
        self._said_away = False
        self._sentences: dict[str, bool] = {}
        """Each sentence, and whether it was said."""

    def add(self, sentence: str) -> None:
        """Have a sentence said, unless it is known already or there were too many."""
        if sentence not in self._sentences:
            self._sentences.setdefault(sentence if len(self._sentences) < SENTENCES_MAX else NO_MORE_SENTENCES, False)

    def client_error(self, error: KafkaError) -> None:
        """Take an error of a Kafka client."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self.is_kafka_away = True
        why = clients.why_no_login(self._bootstrap, error)
        if why is not None:
            self.add(f"{str(why).rstrip('.')}; nothing is lost, and the job continues when the login works again.")

    def kafka_answered(self) -> None:
        self.is_kafka_away = False

    def announce(self, say: Callable[..., object]) -> None:
        """Say what is new; that Kafka is away is said once each time."""
        if self.is_kafka_away and not self._said_away:
            sentence = (
                f"Kafka at {self._bootstrap} does not answer; nothing is lost, and the job continues when it does."
            )
            say(sentence, level="warning", query="order")
        self._said_away = self.is_kafka_away
        for sentence in [sentence for sentence, said in list(self._sentences.items()) if not said]:
            self._sentences[sentence] = True
            say(sentence, level="warning", query="order")
