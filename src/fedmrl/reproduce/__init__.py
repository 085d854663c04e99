"""The paper, measured: which runs its tables and figures need, what came out of them, and whether its claims hold."""
