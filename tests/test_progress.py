import io

from rich.console import Console

from fedmrl.progress import watching


def record(round_, **accuracy):
    return {"round": round_, "loss": 0.5, "accuracy": accuracy}


PARTICIPANTS = {"own": {"local": 0.25}}
EVERYONE = {"own": {"local": 0.5}, "aggregated": {"local": 0.75}}


def test_a_terminal_gets_a_bar_with_the_time_left_and_the_accuracy():
    screen = io.StringIO()
    with watching(Console(file=screen, force_terminal=True, width=140), "FedMRL", 2) as on_round:
        on_round(record(1, participants=PARTICIPANTS))
        on_round(record(2, participants=PARTICIPANTS, all=EVERYONE))
    assert (
        "2/2" in screen.getvalue()
        and "left" in screen.getvalue()
        and "accuracy 75.0% (all clients, round 2), 25.0%" in screen.getvalue()
    )


def test_a_file_gets_plain_lines():
    log = io.StringIO()
    with watching(Console(file=log, width=140), "FedMRL", 1) as on_round:
        on_round(record(1, participants=PARTICIPANTS))
    assert log.getvalue() == "FedMRL: round 1/1, 25.0% (this round's), loss 0.500, 0 s left\n"
