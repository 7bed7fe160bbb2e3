import pytest
from tests.conformance.cases import Status
from tests.conformance.contestants import CONTESTANTS
from tests.conformance.programs import gradient_trial, program_trial, record_of, smallest
from tests.random_programs.generator import PYTHON_ARGUMENTS, accepted, random_program
from tests.random_programs.shrink import shrink

SEEDS = range(40)


def test_a_seed_always_gives_the_same_program():
    assert [random_program(seed) for seed in range(5)] == [random_program(seed) for seed in range(5)]


def test_eager_runs_every_program_with_both_sets_of_python_values():
    assert len(PYTHON_ARGUMENTS) == 2
    assert all(accepted(random_program(seed)) for seed in SEEDS)


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_no_program_changes_the_form_of_an_input():
    for seed in SEEDS:
        program = random_program(seed)
        arguments = program.arguments()
        forms = [(tensor.shape, tensor.stride()) for tensor in arguments]
        program.function()(*arguments, **PYTHON_ARGUMENTS[0])
        assert forms == [(tensor.shape, tensor.stride()) for tensor in arguments]


@pytest.mark.parametrize("kind", ["rand", ".add_(", "view", "if flag", "torch.float64", "for "])
def test_programs_contain_what_users_write(kind):
    assert any(kind in random_program(seed).source for seed in range(300))


@pytest.mark.parametrize("trial", [program_trial, gradient_trial])
def test_eager_equals_itself_on_every_program(trial):
    assert {record_of(random_program(seed), trial, CONTESTANTS["identity"]).status for seed in SEEDS} == {Status.EQUAL}


def test_a_failing_program_is_shrunk_to_the_statement_that_fails():
    program = next(p for p in map(random_program, range(300)) if any("exp" in s for s in p.steps) and len(p.steps) > 5)
    least = shrink(program, lambda candidate: "exp" in candidate.source)
    assert len(least.steps) < len(program.steps)
    assert "exp" in least.source
    assert accepted(least)


def test_the_reproduction_is_a_script_with_the_program_and_its_inputs():
    program = next(p for p in map(random_program, range(300)) if ".zero_()" in p.source)
    text = smallest(program, program_trial, CONTESTANTS["arguments_copied"])
    assert "weft.hybridize(program)" in text
    assert "def program(x" in text
