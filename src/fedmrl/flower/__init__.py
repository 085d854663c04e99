"""Federations over a network, on Flower: the server's side, the client's agent, and keys and certificates."""
