"""Real federations: organisations with models and data of their own, connected by Flower."""

from importlib.util import find_spec

from fedmrl.errors import UserError

if any(find_spec(name) is None for name in ("flwr", "grpc", "cryptography")):
    raise UserError("federations over a network need Flower; install it with: pip install 'fedmrl[flower]'")
