"""Damaged, cut-off, foreign and missing readings: no crash, and nothing is claimed that was not read."""

from __future__ import annotations

import random

import pytest

from model_optimizer.doctor import examine
from model_optimizer.kb.conditions import conditions
from model_optimizer.records.doctor import Reading, Survey
from tests.doctor.recorded import GPU, HOSTS, host, smi_xml, survey_of

NAMES = sorted(file.stem for file in HOSTS.glob("*.yaml"))
_BINARY = bytes(range(256)).decode("latin-1") * 40
_NONE = {name: "N/A" for name in GPU if name not in ("processes", "mig_devices", "at", "name")}


def grave(survey: Survey) -> set[str]:
    """Ids of errors and warnings."""
    return {f.id for f in examine(survey, conditions()).findings if f.severity in ("error", "warning")}


def changed(survey: Survey, **readings: Reading) -> Survey:
    """The survey with other readings."""
    return survey.model_copy(update={"readings": {**survey.readings, **readings}})


def test_an_empty_survey_has_no_findings() -> None:
    found = examine(Survey(taken_at=""), conditions())
    assert found.findings == ()
    assert "unknown system" in found.host
    assert found.works


@pytest.mark.parametrize("status", ["absent", "denied", "timeout"])
def test_a_host_that_answers_nothing_is_accused_of_nothing_but_silence(status: str) -> None:
    survey, _ = host("healthy-single-gpu")
    silent = {name: Reading(source=name, status=status) for name in survey.readings}
    assert grave(changed(survey, **silent)) <= {"nvidia-smi-hangs"}


@pytest.mark.parametrize("text", [_BINARY, "\x00" * 5000, "", "{" * 3000, "[" * 3000, "N/A\n" * 100, "��", ": \n=\n"])
@pytest.mark.parametrize("name", ["healthy-single-gpu", "healthy-cpu-server"])
def test_one_damaged_reading_of_a_healthy_host_invents_nothing_grave(name: str, text: str) -> None:
    survey, _ = host(name)
    # these are judged by absence: an empty list of modules, nodes or versions is itself a statement
    judged = {"modules", "nvidia-version", "nvidia-nodes", "programs", "docker-info", "cdi"}
    for probe in set(survey.readings) - judged:
        worse = changed(survey, **{probe: Reading(source=probe, text=text)})
        assert grave(worse) == set(), probe
    for probe in judged:
        examine(changed(survey, **{probe: Reading(source=probe, text=text)}), conditions())


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
def test_a_page_of_nvidia_smi_that_is_cut_off_says_nothing(share: float) -> None:
    survey, _ = host("ecc-errors")
    page = survey.readings["nvidia-smi-xml"].text
    worse = changed(
        survey, **{"nvidia-smi-xml": Reading(source="nvidia-smi -q -x", text=page[: int(len(page) * share)])}
    )
    assert grave(worse) == set()


@pytest.mark.parametrize("word", ["N/A", "[N/A]", "Unknown Error", "", "-", "99999999999999999999"])
def test_values_that_a_card_does_not_tell_are_no_findings(word: str) -> None:
    values = dict.fromkeys(_NONE, word) if word != "99999999999999999999" else {"temperature": word, "gen": word}
    survey = survey_of({"gpus": [values]})
    assert grave(survey) == set()


def test_an_xml_bomb_is_not_expanded() -> None:
    bomb = '<!DOCTYPE x [<!ENTITY a "' + "x" * 1000 + '">' + "".join(
        f'<!ENTITY {chr(98 + n)} "{f"&{chr(97 + n)};" * 10}">' for n in range(9)
    ) + "]><nvidia_smi_log><driver_version>&j;</driver_version></nvidia_smi_log>"  # fmt: skip
    survey, _ = host("healthy-cpu-server")
    assert grave(changed(survey, **{"nvidia-smi-xml": Reading(source="nvidia-smi -q -x", text=bomb)})) == set()


def test_a_gpu_whose_name_is_hostile_reaches_no_command() -> None:
    page = smi_xml([{**GPU, "name": "$(touch /tmp/x)`id`; rm", "rows_pending": "Yes"}], "580.95.05", "13.0")
    survey, _ = host("healthy-single-gpu")
    found = examine(changed(survey, **{"nvidia-smi-xml": Reading(source="x", text=page)}), conditions())
    assert [f.id for f in found.findings if f.severity == "warning"] == ["ecc-rows-pending"]
    assert all("touch" not in step for f in found.findings for step in f.fix)


@pytest.mark.parametrize("name", NAMES)
def test_every_recorded_host_survives_damage(name: str) -> None:
    """Random cuts and flips, the same on every run."""
    survey, _ = host(name)
    chance = random.Random(name)
    for _ in range(5):
        damaged = {}
        for probe, reading in survey.readings.items():
            text = list(reading.text[: chance.randrange(len(reading.text) + 1)])
            for _ in range(len(text) // 50):
                text[chance.randrange(len(text))] = chr(chance.randrange(1, 500))
            damaged[probe] = reading.model_copy(update={"text": "".join(text)})
        examine(changed(survey, **damaged), conditions())
