import io

from rich.console import Console

from fedmrl.progress import watching


def record(round_, **accuracy):
    return {"round": round_, "loss": 0.5, "accuracy": accuracy}


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
