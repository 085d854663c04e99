"""What the CPU can do is read from what the system says of it."""

import pytest
from tiny import tiny_recipe

import fedmrl
from fedmrl import cpu


@pytest.fixture
def said(monkeypatch):
    """Lets the system say something else of the CPU."""
    return lambda **facts: monkeypatch.setattr(cpu, "_facts", lambda: facts)


def test_a_cpu_is_named_with_family_and_model_number(said):
    said(**{"model name": "AMD EPYC", "cpu family": "26", "model": "17"})
    assert cpu.cpu_name() == "AMD EPYC (family 26, model 17)"
    said()
    assert cpu.cpu_name().endswith(" CPU")


@pytest.mark.parametrize(
    ("facts", "emulates"),
    [
        ({"flags": "fpu avx2 avx512f"}, True),
        ({"flags": "fpu avx512f avx512_bf16"}, False),
        ({"Features": "fp asimd bf16"}, False),
        ({"Features": "fp asimd"}, True),
        ({}, False),
    ],
)
def test_bf16_is_emulated_where_no_instruction_multiplies_in_it(said, facts, emulates):
    said(**facts)
    assert cpu.emulates_bf16() is emulates


@pytest.mark.parametrize(("precision", "engine", "told"), [("bf16", "auto", 1), ("bf16", "batched", 1), ("fp32", "auto", 0)])
def test_a_run_in_bf16_says_once_that_the_cpu_emulates_it(said, precision, engine, told):
    said(flags="fpu avx2")
    lines = []
    fedmrl.run(tiny_recipe(rounds=1, training__precision=precision), device="cpu", engine=engine, on_notice=lines.append)
    assert sum("bf16" in line for line in lines) == told
