"""Runs share the large files of their systems, and never a file whose content has changed."""

from pathlib import Path

import pytest

from system_under_test.own.subject import LINKED_FROM_BYTES, link_or_copy


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "krucible" / "files"


def test_two_runs_share_a_large_file(tmp_path: Path, cache: Path) -> None:
    (source := tmp_path / "server").write_bytes(b"x" * LINKED_FROM_BYTES)
    source.chmod(0o755)
    first, second = tmp_path / "first", tmp_path / "second"
    link_or_copy(source, first)
    link_or_copy(source, second)
    assert first.samefile(second) and not first.samefile(source)
    assert first.read_bytes() == source.read_bytes()
    assert first.stat().st_mode & 0o777 == 0o555
    source.write_bytes(b"y" * LINKED_FROM_BYTES)
    link_or_copy(source, third := tmp_path / "third")
    assert (first.read_bytes()[:1], third.read_bytes()[:1]) == (b"x", b"y")


def test_a_shared_file_that_was_changed_is_made_again(tmp_path: Path, cache: Path) -> None:
    (source := tmp_path / "server").write_bytes(b"x" * LINKED_FROM_BYTES)
    link_or_copy(source, tmp_path / "first")
    (shared,) = cache.iterdir()
    shared.chmod(0o644)
    shared.write_bytes(b"z")
    link_or_copy(source, tmp_path / "second")
    assert (tmp_path / "second").read_bytes() == source.read_bytes()
    assert [path.name for path in cache.iterdir()] == [shared.name]


def test_a_small_file_is_a_copy_of_its_own(tmp_path: Path, cache: Path) -> None:
    (source := tmp_path / "notes").write_bytes(b"x" * (LINKED_FROM_BYTES - 1))
    link_or_copy(source, tmp_path / "first")
    link_or_copy(source, tmp_path / "second")
    assert not (tmp_path / "first").samefile(tmp_path / "second")
    assert not cache.exists()


def test_without_hard_links_it_is_a_copy(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("Invalid cross-device link")

    monkeypatch.setattr("os.link", refuse)
    (source := tmp_path / "server").write_bytes(b"x" * LINKED_FROM_BYTES)
    link_or_copy(source, tmp_path / "first")
    assert (tmp_path / "first").read_bytes() == source.read_bytes()
