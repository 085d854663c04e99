"""The Flower ClientApp: passes each frame from Flower to the client's agent, and its reply back.

Every message starts this file in a new process, so it imports only what it uses. It reads nothing of what it passes on.
"""

import time

from flwr.app import Array, ArrayRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from fedmrl.flower.frame import FrameError, exchange

FRAME = "fedmrl.frame"
"""The name and serialisation type of the array that carries a frame."""
_MOST = 2**31 - 1  # bytes of a reply's arrays: as much as Flower carries; the server has its own limit
_CODE = 1000  # of errors that a ClientApp defines itself

app = ClientApp()


def record(frame: bytes) -> RecordDict:
    """A frame as the content of a Flower message: one opaque array."""
    return RecordDict({FRAME: ArrayRecord({FRAME: Array("uint8", (len(frame),), FRAME, frame)})})


def frame_of(content: RecordDict) -> bytes:
    """The frame in a Flower message's content; raises `ValueError` if it has anything else."""
    if list(content) != [FRAME] or not isinstance(arrays := content[FRAME], ArrayRecord):
        raise ValueError("the message does not consist of one frame")
    if list(arrays) != [FRAME] or arrays[FRAME].stype != FRAME:
        raise ValueError("the message does not consist of one frame")
    return arrays[FRAME].data


@app.query()
@app.train()
@app.evaluate()
def forward(message: Message, context: Context) -> Message:
    """Passes a message's frame to the agent, whose socket the node's configuration names."""
    metadata = message.metadata
    try:
        frame = frame_of(message.content)
        left = metadata.created_at + metadata.ttl - time.time()
        reply = exchange(str(context.node_config["socket"]), frame, max(left, 1.0), max_body=_MOST)
        return Message(record(reply), reply_to=message)
    except KeyError:
        reason = "the SuperNode was started without socket=… in its --node-config"
    except TimeoutError:
        reason = "the client's agent did not answer in time"
    except OSError as error:
        reason = f"the client's agent does not answer on its socket ({error.strerror or type(error).__name__})"
    except FrameError as error:
        reason = f"the client's agent gave no whole reply: {error}"
    except ValueError as error:
        reason = str(error)
    return Message(Error(_CODE, reason), reply_to=message)
