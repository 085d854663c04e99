import math

import pytest

from fedmrl import memory


@pytest.fixture
def container(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)

    def limited(**files):
        for name, text in files.items():
            (tmp_path / f"memory.{name}").write_text(text)

    return limited


def test_cached_files_of_a_container_count_as_free(container):
    container(max="1000\n", current="900\n", stat="anon 200\nactive_file 300\ninactive_file 400\nshmem 7\n")
    assert memory._left_in_container() == 800


def test_a_container_without_a_limit_leaves_all(container):
    assert memory._left_in_container() == math.inf
    container(max="max\n", current="900\n", stat="active_file 300\n")
    assert memory._left_in_container() == math.inf
