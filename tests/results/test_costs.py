import pytest

from fedmrl.results import Record, cost_to_target


def record(round_, accuracy, participants, up, down, flops):
    return Record.model_validate(
        {
            "round": round_,
            "participants": list(range(participants)),
            "loss": 1.0,
            "accuracy": {"participants": {"own": {"local": accuracy}}},
            "up": {"parameters": up, "bytes": 0},
            "down": {"parameters": down, "bytes": 0},
            "flops": flops,
        }
    )


RECORDS = [record(1, 0.3, 2, 10, 10, 100), record(2, 0.6, 2, 10, 20, 100), record(3, 0.5, 2, 10, 20, 100)]


def test_the_cost_to_a_target_counts_the_rounds_up_to_the_first_that_reached_it():
    cost = cost_to_target(RECORDS, 5, 0.5, "participants", "own", "local")
    assert cost.reached and cost.rounds == 2
    assert cost.parameters == pytest.approx(50 / 5) and cost.flops == pytest.approx(200 / 5)
    # The paper's product: a participant's 12.5 parameters a round, times two rounds.
    assert cost.paper_parameters == pytest.approx(25) and cost.paper_flops == pytest.approx(100)


def test_a_target_that_was_not_reached_says_so():
    cost = cost_to_target(RECORDS, 5, 0.9, "participants", "own", "local").model_dump(exclude_none=True)
    assert cost == {"target": 0.9, "accuracy_of": "participants", "view": "own", "mode": "local", "reached": False}
