"""At a start the cache becomes the copy of the state topic as it is now, or a new one is made."""

from collections.abc import Callable, Mapping
from pathlib import Path

from confluent_kafka import KafkaException

from precede.ingest.kafka import reading
from precede.ingest.kafka.access import Address
from precede.ingest.kafka.reading import TopicReader
from precede.ingest.state_changes import new_states
from precede.streaming.process.cache import Cache, CacheError, CacheSource, open_cache, remove_cache

Say = Callable[[str], object]

ANSWER_S = 1.0


class StateTopic:
    """The state topic of one stream, of which the partitions of this job are read."""

    def __init__(
        self, bootstrap: Address | str, name: str, source: CacheSource, *, check_stop: Callable[[], object]
    ) -> None:
        """`check_stop` raises where the job is to stop: a large state is not read to its end then."""
        self.bootstrap = bootstrap
        self.name = name
        self.source = source
        self._check_stop = check_stop
        self._reader: TopicReader | None = None

    def copy(self, folder: Path, token: Mapping[int, int], say: Say) -> Cache:
        """The cache in this folder, with all that the topic has now. Raises Refused and Unreachable."""
        try:
            cache = open_cache(self.source, folder)
            if cache is not None:
                return self._continued(cache, token)
        except CacheError as error:
            say(f"The cache {folder} cannot be used ({error}): it is made again from {self.name}.")
        remove_cache(folder)
        try:
            return self._filled(Cache(self.source, folder))
        except CacheError as error:
            remove_cache(folder)
            say(f"The cache {folder} cannot be written ({error}): until the next start the state is kept in memory.")
            return self._filled(Cache(self.source, None))

    def ends(self) -> dict[int, int]:
        """Up to which offset of each partition everything is committed; empty where Kafka does not say it now."""
        if self._reader is None:
            self._reader = TopicReader(self.bootstrap)
        try:
            found = self._reader.ends(self.name, self.source.partitions, ANSWER_S)
        except KafkaException:
            return {}
        return {at: end for at, (_, end) in found.items()}

    def close(self) -> None:
        """Close the connection that `ends` opened."""
        if self._reader is not None:
            self._reader.close()

    def _continued(self, cache: Cache, token: Mapping[int, int]) -> Cache:
        """A cache of an earlier start, brought up to date."""
        try:
            ends = self._all_ends()
            if any(offset > ends.get(at, 0) for at, offset in cache.positions.items()):
                raise CacheError(f"{self.name} has lost records that are in it")
            if cache.reaches_above(token):
                raise CacheError("it has a state above what is published")
            self._read(cache, cache.positions, ends)
            cache.note_positions(ends)
        except BaseException:
            cache.abandon()
            raise
        return cache

    def _filled(self, cache: Cache) -> Cache:
        """A new cache with everything in it."""
        try:
            ends = self._all_ends()
            self._read(cache, {}, ends)
            cache.complete(ends)
        except BaseException:
            cache.abandon()
            raise
        return cache

    def _all_ends(self) -> dict[int, int]:
        """The ends, also of what is not committed: open transactions may hide what was there before."""
        found = reading.ends_of(self.bootstrap, self.name, self.source.partitions, committed=False)
        return {at: end for at, (_, end) in found.items()}

    def _read(self, cache: Cache, positions: Mapping[int, int], ends: Mapping[int, int]) -> None:
        """Put all states in the cache from these offsets on; partitions where nothing came are not read."""
        behind = {at: positions.get(at, 0) for at, end in ends.items() if end > positions.get(at, 0)}
        if behind:
            upto = {at: ends[at] for at in behind}
            states = new_states(
                self.bootstrap,
                self.name,
                behind,
                upto,
                stream=self.source.stream,
                is_known=lambda group: cache.get(group) is not None,
                check_stop=self._check_stop,
            )
            for one in states:
                cache.put(one)
