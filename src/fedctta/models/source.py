"""Which weights a run started from, for its record and its reader."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedctta.models.zoo import PACKAGED, origin, read_card


class Source(NamedTuple):
    """The file a model's weights come from, if they come from one, and its card, if it has one."""

    path: Path | None
    card: Mapping[str, Any]

    @classmethod
    def of(cls, path: Path | None) -> Source:
        """Read the card."""
        return cls(path, {} if path is None or not path.with_suffix(".json").is_file() else read_card(path))

    def told(self) -> dict[str, Any]:
        """Return what a record says of them: whose they are, how they were made, and how good they are."""
        if self.path is None:
            return {}
        card = {key: self.card[key] for key in ("accuracy", "seed", "torch", "date") if key in self.card}
        return {"weights": origin(self.path), "file": self.path.name, **card, **_epochs(self.card)}

    def notes(self, own_folder: bool) -> list[str]:
        """Say what a reader might take for something else: own weights for the package's.

        Or, of weights made from a folder of the user's (`own_folder`), from which one.
        """
        notes = [f"source model: {note}" for note in self.card.get("notes", ())] if own_folder else []
        if self.path is not None and origin(self.path) == "cache" and (PACKAGED / self.path.name).is_file():
            made = self.told()
            how = ", ".join(f"{key} {made[key]}" for key in ("seed", "epochs", "date") if key in made)
            notes.append(f"source model: your own training ({how}), in place of the package's weights of that name")
        return notes


def _epochs(card: Mapping[str, Any]) -> dict[str, Any]:
    recipe = card.get("recipe", {})
    return {"epochs": recipe["epochs"]} if isinstance(recipe, dict) and "epochs" in recipe else {}
