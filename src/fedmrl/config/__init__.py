"""Recipes: complete configurations in TOML, read, overridden by `key=value`, validated, and written with all defaults."""

from fedmrl.config.loading import NamedRecipe, load_named, load_recipe, read_origins, recipe_of_run
from fedmrl.config.parsing import parse_recipe, settings_of
from fedmrl.config.paths import path_keys
from fedmrl.config.problems import known_keys, sentence
from fedmrl.config.recipe import EvaluationTable, ModelsTable, Network, Recipe
from fedmrl.config.settings import Settings, parse_value
from fedmrl.recipes import known_recipes

__all__ = [
    "EvaluationTable",
    "ModelsTable",
    "NamedRecipe",
    "Network",
    "Recipe",
    "Settings",
    "known_keys",
    "known_recipes",
    "load_named",
    "load_recipe",
    "parse_recipe",
    "parse_value",
    "path_keys",
    "read_origins",
    "recipe_of_run",
    "sentence",
    "settings_of",
]
