"""A paper's table played and set beside the paper: `normfed reproduce fedbn/table11`.

    DIR/{full,quick}/fedbn/table11/ROW/       a run's folder for each line of the table that can be played
    DIR/{full,quick}/fedbn/table11/reproduction.json

DIR is runs/reproduce where none is given. What cannot be played (no data, no weights, no extra) is said, line by line.
"""

from normfed.reproduce.beside import outcome
from normfed.reproduce.overview import hindrance, listing, overview
from normfed.reproduce.shown import grid, heading, notes
from normfed.reproduce.table import FOLDER, Line, check, from_folder, lines, play, report, skipped

__all__ = [
    "FOLDER", "Line", "check", "from_folder", "grid", "heading", "hindrance", "lines", "listing", "notes", "outcome",
    "overview", "play", "report", "skipped",
]  # fmt: skip
