"""Real federations: organisations with models and data of their own, connected by Flower."""
