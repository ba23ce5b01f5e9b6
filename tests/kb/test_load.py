"""Every mistake in a fact file is an error with file and line."""

import textwrap

import pytest
import yaml

from model_optimizer.errors import SpecInvalid
from model_optimizer.kb.engines import read_engine
from model_optimizer.kb.gpus import read_gpus
from model_optimizer.kb.load import data_folder, line_of, read_yaml
from model_optimizer.kb.rules import read_rules

GOOD = textwrap.dedent("""\
    architecture: {id: ada, title: Ada, vendor: nvidia}
    sources:
      s:
        title: a page
        read: 2026-12-01
        status: community
    gpus:
      - id: x-1
        title: X 1
        memory: {value: 8 GiB, type: GDDR6, source: s}
        memory_bandwidth: {value: 256 GB/s, source: s}
        pcie: {value: 4.0 x8, source: s}
    """)


def _gpu_file(tmp_path, text):
    path = tmp_path / "x.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_good_file_loads(tmp_path):
    (spec,) = read_gpus(_gpu_file(tmp_path, GOOD))
    assert spec.memory_bytes.value == 8 * 2**30
    assert spec.memory_bandwidth_bytes_s.value == 256e9
    assert spec.memory_bytes.status == "community" and not spec.memory_bytes.may_refuse
    assert [source.id for source in spec.sources] == ["s"]


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("value: 8 GiB", "value: 8", 10, "GB and GiB differ"),
        ("value: 8 GiB", "value: 8 GiBB", 10, "unknown unit"),
        ("value: 256 GB/s", "value: 256", 11, "256 GB/s"),
        ("value: 256 GB/s", "value: 256 Gbit", 11, "GB/s"),
        ("value: 4.0 x8", "value: four", 12, "4.0 x16"),
        ("source: s}\n    memory_bandwidth", "source: t}\n    memory_bandwidth", 10, "'t' is not declared"),
        ("id: x-1", "id: X 1", 8, "pattern"),
        ("title: X 1", "heading: X 1", 9, "heading"),
        ("status: community", "status: rumour", 6, "vendor"),
        ("read: 2026-12-01", "read: yesterday", 5, "pattern"),
        ("vendor: nvidia", "vendor: matrox", 1, "nvidia"),
    ],
)
def test_mistakes_name_their_line(tmp_path, old, new, line, words):
    path = _gpu_file(tmp_path, GOOD.replace(old, new))
    with pytest.raises(SpecInvalid) as caught:
        read_gpus(path)
    report = " ".join((caught.value.cause, *caught.value.evidence))
    assert f"{path}:{line}:" in report and words in report
    assert caught.value.fix and caught.value.exit_code == 2


def test_pci_ids_need_a_source(tmp_path):
    path = _gpu_file(tmp_path, GOOD + '    pci_ids: ["10de:0001"]\n')
    with pytest.raises(SpecInvalid, match="pci_ids need pci_source") as caught:
        read_gpus(path)
    assert f"{path}:13:" in caught.value.cause


@pytest.mark.parametrize("text", ["gpus: [", "a: b: c", "\tx: 1", "- {a", '"'])
def test_text_that_is_not_yaml(tmp_path, text):
    path = _gpu_file(tmp_path, text)
    with pytest.raises(SpecInvalid, match="not valid YAML") as caught:
        read_gpus(path)
    assert f"{path}:1:" in caught.value.cause or f"{path}:2:" in caught.value.cause


@pytest.mark.parametrize("text", ["", "42", "[]", "null", "gpus: 3"])
def test_yaml_that_is_something_else(tmp_path, text):
    with pytest.raises(SpecInvalid):
        read_gpus(_gpu_file(tmp_path, text))


def test_missing_and_binary_files(tmp_path):
    with pytest.raises(SpecInvalid, match="cannot be read"):
        read_yaml(tmp_path / "absent.yaml")
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecInvalid, match="cannot be read"):
        read_yaml(tmp_path / "b.yaml")


RULES = textwrap.dedent("""\
    engine: vllm
    sources:
      s: {title: t, read: 2026-12-01, status: vendor}
    rules:
      - schemes: [fp8]
        state: impossible
        code: CAPABILITY_TOO_LOW
        sentence: "needs something newer"
        source: s
        example: {gpu: t4}
    """)


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("engine: vllm", "engine: vlm", 1, "no engine"),
        ("[fp8]", "[fp9]", 5, "no scheme"),
        ("CAPABILITY_TOO_LOW", "TOO_BAD", 7, "no reason"),
        ("state: impossible", "state: native", 7, "no reason for 'native'"),
        ("source: s", "source: r", 9, "not declared"),
        ("    example: {gpu: t4}\n", "", 5, "example"),
    ],
)
def test_mistakes_in_rules_name_their_line(tmp_path, old, new, line, words):
    path = _gpu_file(tmp_path, RULES.replace(old, new))
    with pytest.raises(SpecInvalid) as caught:
        read_rules(path)
    report = " ".join((caught.value.cause, *caught.value.evidence))
    assert f"{path}:{line}:" in report and words in report


def test_an_engine_file_with_an_unknown_key(tmp_path):
    text = (data_folder() / "engines" / "transformers.yaml").read_text(encoding="utf-8")
    path = _gpu_file(tmp_path, text.replace("serve:", "serves:"))
    with pytest.raises(SpecInvalid) as caught:
        read_engine(path)
    assert any("serves" in line for line in caught.value.evidence)


def test_line_of_finds_nested_values(tmp_path):
    path = _gpu_file(tmp_path, GOOD)
    assert line_of(path, ("gpus", 0, "memory", "value")) == 10
    assert line_of(path, ("gpus", 0, "nothing")) == 8  # the entry itself
    assert line_of(path, ()) == 1


def _all_files(folder):
    for entry in folder.iterdir():
        yield from _all_files(entry) if entry.is_dir() else [entry]


def _keys_twice(node, path=""):
    if isinstance(node, yaml.MappingNode):
        keys = [key.value for key, _ in node.value]
        yield from (f"{path}.{key}" for key in set(keys) if keys.count(key) > 1)
        for key, value in node.value:
            yield from _keys_twice(value, f"{path}.{key.value}")
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield from _keys_twice(value, f"{path}[{index}]")


def test_no_key_is_written_twice():
    """YAML takes the last of two equal keys silently."""
    for file in _all_files(data_folder()):
        if file.name.endswith(".yaml"):
            node = yaml.compose(file.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
            assert list(_keys_twice(node)) == [], file.name
