"""Runs that are kept: a config played in a folder of its own, several of them compared, a finished one given back.

    DIR/config.toml                  the resolved config; running it again gives the same numbers
        records.jsonl                facts, appended round by round
        checkpoint.safetensors       where to go on; the one before it is kept while the run goes
        model.safetensors            the global state
        clients/NAME.safetensors     what a client evaluates with beside it, where there is anything
        result.json                  written last: where it is, the run is finished

A run of several seeds has a folder `seed-S` for each, every one a run's folder, and above them their records in one
file, their result in one document. A comparison has a folder for each method and `comparison.json`.
"""

from normfed.runs.join import join
from normfed.runs.load import Finished, load
from normfed.runs.play import OnRound, compare, folder_of, named_by, run

__all__ = ["Finished", "OnRound", "compare", "folder_of", "join", "load", "named_by", "run"]
