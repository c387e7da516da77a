"""The partition of a group: what is computed here is what the real clients do."""

import pytest

from precede.udfs.partitioner import LIBRDKAFKA, PARTITIONERS, murmur2, partition_of, where_it_belongs
from tests.kernel.partitions import read_places


def test_keys_land_where_the_clients_put_them() -> None:
    places = read_places()
    assert len(places) > 150
    for place in places:
        key = place.key.encode()
        assert partition_of(key, place.partitions) == place.murmur2, place
        assert partition_of(key, place.partitions, "murmur2") == place.murmur2, place
        assert partition_of(key, place.partitions, "crc32") == place.crc32, place


def test_the_places_tell_the_two_functions_apart() -> None:
    apart = [place for place in read_places() if place.murmur2 != place.crc32]
    assert len(apart) > len(read_places()) / 2


@pytest.mark.parametrize("length", range(1, 17))
def test_each_byte_counts(length: int) -> None:
    key = bytes(range(1, length + 1))
    changed = [key[:at] + bytes([key[at] ^ 0x80]) + key[at + 1 :] for at in range(length)]
    assert len({murmur2(one) for one in [key, *changed]}) == length + 1


def test_each_partitioner_has_a_name_in_librdkafka_and_a_sentence_that_names_it() -> None:
    assert LIBRDKAFKA.keys() == PARTITIONERS.keys()
    for name, setting in LIBRDKAFKA.items():
        sentence = where_it_belongs(2, 4, name)
        assert sentence.startswith(f"The group belongs in partition 2 of 4, by {name} of the key: ")
        assert f"partitioner={setting}" in sentence
