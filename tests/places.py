"""What every place does, wherever it is."""

import pytest

from precede.streaming.places.place import Place


def check_a_place(place: Place) -> None:
    """Go through everything that the job does with its files; the place is absent at first."""
    assert not place.exists()
    assert place.names() == place.files() == place.all_files() == []
    place.make_folder()
    place.make_folder()
    file = place / "file"
    with pytest.raises(FileNotFoundError):
        file.read()
    assert file.create(b"one")
    assert not file.create(b"another")
    assert file.read() == b"one"
    file.replace(b"two")
    assert (file.read(), file.exists()) == (b"two", True)
    file.replace(b"", durable=False)
    assert file.read() == b""
    assert (place / "below" / "deeper").create(bytes(range(256)) * 100)
    assert (place / "below" / "deeper").read() == bytes(range(256)) * 100
    assert sorted(place.names()) == ["below", "file"]
    assert place.files() == ["file"]
    assert sorted(place.all_files()) == ["below/deeper", "file"]
    (place / "below").rename(place / "below-aside")
    assert not (place / "below").exists()
    assert (place / "below-aside").all_files() == ["deeper"]
    place.keep_names()
    file.remove()
    file.remove()
    assert sorted(place.names()) == ["below-aside"]
    place.remove_all()
    place.remove_all()
    assert not place.exists()
