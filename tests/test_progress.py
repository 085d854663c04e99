import io

from rich.console import Console

from fedmrl import progress
from fedmrl.progress import Overall, watching, working
from fedmrl.results import Record


def record(round_, **accuracy):
    sent = {"parameters": 0, "bytes": 0}
    plain = {"round": round_, "loss": 0.5, "participants": [0], "accuracy": accuracy, "up": sent, "down": sent, "flops": 0}
    return Record.model_validate(plain)


PARTICIPANTS = {"own": {"local": 0.25}}
EVERYONE = {"own": {"local": 0.5}, "aggregated": {"local": 0.75}}


def test_a_terminal_of_80_columns_gets_a_bar_with_the_time_left_and_the_accuracy():
    screen = io.StringIO()
    with watching(Console(file=screen, force_terminal=True, color_system=None, width=80), "Standalone 3 seeds", 2) as on_round:
        on_round(record(1, participants=PARTICIPANTS))
        on_round(record(2, participants=PARTICIPANTS, all=EVERYONE))
    for part in ("Standalone 3 seeds", "2/2", "left", "25.0% now, 75.0% all"):
        assert part in screen.getvalue()


def test_a_file_gets_plain_lines():
    log = io.StringIO()
    with watching(Console(file=log, width=140), "FedMRL", 1) as on_round:
        on_round(record(1, participants=PARTICIPANTS))
    assert log.getvalue() == "FedMRL: round 1/1, 25.0% (this round's), loss 0.500, 0 s left\n"


def test_of_several_runs_the_time_left_of_all_is_told_by_how_long_a_round_took(monkeypatch):
    clock = iter([0.0, 4.0, 8.0, 9.0])
    overall = Overall(6)
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    overall._begun = next(clock)
    overall.begin(2)  # of which nothing is run: it was finished before
    overall.begin(2)
    assert overall.after_this() == 4.0 * 2
    assert overall.after_this() == 4.0 * 2
    overall.begin(2)
    assert overall.after_this() == 0, "on the last run, what is left of all is what is left of it"


def test_a_terminal_of_80_columns_has_room_for_the_time_left_of_all():
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, color_system=None, width=80)
    with watching(console, "Standalone 3 seeds", 2, Overall(4)) as on_round:
        on_round(record(1, participants=PARTICIPANTS))
        on_round(record(2, participants=PARTICIPANTS, all=EVERYONE))
    assert "(all 0:00:00) 25.0% now, 75.0% all" in screen.getvalue()


def test_a_file_is_told_the_time_left_of_all():
    log = io.StringIO()
    with watching(Console(file=log, width=140), "FedMRL", 1, Overall(2)) as on_round:
        on_round(record(1, participants=PARTICIPANTS))
    assert "0 s left, 0 s for all methods" in log.getvalue()


def test_long_work_says_how_much_of_it_is_left(monkeypatch):
    log = io.StringIO()
    monkeypatch.setattr(progress, "_EVERY", 0.0)
    with working(Console(file=log, width=140)) as on_step:
        on_step("eager fp32", 0, 4)
        on_step("eager fp32", 1, 4)
    assert log.getvalue() == "eager fp32: 25% of it all, about 0 s left\n"
